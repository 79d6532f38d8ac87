"""A client of Piston (piston_rspy). stdin: {url, jobs: [{language, code, stdin}]}."""

import asyncio
import json
import os
import sys

import piston_rspy

asked = json.load(sys.stdin)


async def main():
    client = piston_rspy.Client.with_url(asked["url"] + "/api/v2")
    runtimes = await client.fetch_runtimes()
    found = []
    for job in asked["jobs"]:
        executor = piston_rspy.Executor().set_language(job["language"]).set_version("*")
        executor = executor.set_stdin(job["stdin"]).add_file(piston_rspy.File(name="main", content=job["code"]))
        done = await client.execute(executor)
        compiled = done.compile and done.compile.code
        found.append([done.run and done.run.stdout, done.run and done.run.code, compiled])
    print(json.dumps({"runtimes": [each.language for each in runtimes], "runs": found}), flush=True)


asyncio.run(main())
os._exit(0)  # threads of piston_rspy 0.4.3 crash now and then where the interpreter ends in order
