"""verl's own reward for code (`sandbox_fusion.compute_score`), as its reward manager calls it.

stdin: {url, jobs: [{answer, truth}]}; the last line of stdout: for each job its score and the statuses of its tests.
"""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from verl.utils.reward_score.sandbox_fusion import compute_score

asked = json.load(sys.stdin)
semaphore = threading.Semaphore(asked["max_concurrent"])


def score(job):
    url = asked["url"] + "/run_code"
    found, tests = compute_score(
        url, semaphore, 1024, job["answer"], job["truth"], continuous=True, timeout=asked["timeout"]
    )
    return [found, [test.get("status") for test in tests]]


with ThreadPoolExecutor(8) as threads:
    print(json.dumps(list(threads.map(score, asked["jobs"]))))
