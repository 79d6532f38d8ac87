"""argv: a file with answers, a folder for logs. Scores of a real Inspect evaluation whose solver gives the answers (its
mock model asks the network for a tokenizer), and what its sandbox did, as JSON on the last line.
"""

import json
import sys
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

from sandbox.integrations import inspect as ours

given, logs = sys.argv[1:]
samples = json.loads(Path(given).read_text())
seen = {}


async def error_of(call):
    try:
        await call
    except Exception as error:
        return type(error).__name__
    return ""


@solver
def uses_the_sandbox():
    async def solve(state, generate):
        state.output = ModelOutput.from_content("mock", samples[state.sample_id - 1]["answer"])
        if state.sample_id != 1:
            return state
        box = sandbox()
        await box.write_file("a/sum.py", "print(sum(map(int, input().split())))")
        ran = await box.exec(["python3", "a/sum.py"], input="3 4\n")
        seen["python"] = [ran.success, ran.returncode, ran.stdout]
        ran = await box.exec(
            ["sh", "-c", "echo $WORD > b.txt; ln -s b.txt link; ls; pwd; exit 3"], cwd="a", env={"WORD": "hi"}
        )
        seen["shell"] = [ran.success, ran.returncode, ran.stdout.split()[:3]]
        seen["read"] = [await box.read_file("a/b.txt"), (await box.read_file("a/link", text=False)).decode()]
        seen["given"] = await box.read_file("given.txt")
        seen["missing"] = (await box.exec(["no-such-program"])).returncode
        big = "import sys; sys.stdout.write('x' * (11 << 20))"
        seen["errors"] = [
            await error_of(box.read_file("nothing")), await error_of(box.read_file("a")),
            await error_of(box.write_file("/etc/passwd", "x")), await error_of(box.exec(["sleep", "60"], timeout=1)),
            await error_of(box.exec(["true"], user="root")), await error_of(box.exec(["python3", "-c", big])),
        ]  # fmt: skip
        net = "import socket; socket.create_connection(('127.0.0.1', 1), 1)"
        seen["network"] = (await box.exec(["python3", "-c", net])).stderr.strip().splitlines()[-1]
        seen["still"] = (await box.exec(["cat", "a/b.txt"])).stdout
        return state

    return solve


dataset = [
    Sample(input="add", target="", metadata={"gold": sample["truth"]}, id=number, files={"given.txt": "as given"})
    for number, sample in enumerate(samples, 1)
]
task = Task(
    dataset=MemoryDataset(dataset),
    solver=uses_the_sandbox(),
    scorer=ours.judged_by_tests(column="gold"),
    sandbox="overlap",
)
(log,) = eval(task, model="mockllm/model", log_dir=logs, display="none", max_samples=1,
              fail_on_error=False, max_sandboxes=4)  # fmt: skip
scores = [sample.scores["judged_by_tests"].value if sample.scores else None for sample in log.samples]
errors = [sample.error.message if sample.error else "" for sample in log.samples]
print(json.dumps({"rewards": scores, "errors": errors, "sandbox": seen, "status": log.status}))
