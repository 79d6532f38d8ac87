"""What open-r1's routed sandbox sends and reads, with the classes of the e2b package that it reads by.

open-r1 is in no registry: this replays its calls. stdin: {url, jobs: [script]}.
"""

import json
import sys

import requests
from e2b_code_interpreter.models import Execution, ExecutionError, Result

asked = json.load(sys.stdin)
payload = {"scripts": asked["jobs"], "languages": ["python"] * len(asked["jobs"]), "timeout": 30, "request_timeout": 28}
rewards = []
for found in requests.post(asked["url"] + "/execute_batch", json=payload).json():
    told = found["execution"]
    if told is None:
        execution = Execution()
    else:
        error = ExecutionError(**told["error"]) if told["error"] else None
        results = [Result(**each) for each in told["results"]]
        execution = Execution(results=results, logs=told["logs"], error=error, execution_count=told["execution_count"])
    try:
        rewards.append(float(execution.text))
    except Exception:
        rewards.append(None)
print(json.dumps(rewards))
