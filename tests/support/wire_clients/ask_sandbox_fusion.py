"""SandboxFusion's own client package. stdin: {url, jobs: [[name of a function, its request]]}."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import sandbox_fusion

asked = json.load(sys.stdin)
sandbox_fusion.set_endpoint(asked["url"])
REQUESTS = {
    "run_code": sandbox_fusion.RunCodeRequest,
    "run_jupyter": sandbox_fusion.RunJupyterRequest,
    "submit": sandbox_fusion.SubmitRequest,
}


def send(job):
    name, request = job
    try:
        return json.loads(getattr(sandbox_fusion, name)(REQUESTS[name](**request)).json())
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}


with ThreadPoolExecutor(8) as threads:
    print(json.dumps(list(threads.map(send, asked["jobs"]))))
