"""OpenRLHF's own client of a remote reward model. stdin: {url, jobs: [{query, prompt, label, how}]}."""

import asyncio
import json
import sys

from openrlhf.utils.agent import SingleTurnAgentExecutor

asked = json.load(sys.stdin)


async def main():
    places = asyncio.Semaphore(8)

    async def one(job):
        async with places:
            executor = SingleTurnAgentExecutor(asked["url"] + "/get_reward" + job.get("how", ""))
            (found,) = await executor._fetch_rewards_via_http([job["query"]], [job["prompt"]], [job["label"]])
            return found["rewards"]

    print(json.dumps(await asyncio.gather(*map(one, asked["jobs"]))))


asyncio.run(main())
