"""Three newcomers, each a shell session with an empty cache, in the order of README and pages.

    python tests/newcomers.py             # prints how many minutes each took
    python tests/newcomers.py phone       # one of them

An ML engineer brings a network of PyTorch, a compiler engineer writes a pass, and the owner of a
phone connects one: here a server on this machine, which is all that a session over RPC sees.
A step that fails ends it; minutes are only printed, because machines differ.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helpers.rpc_processes import Phone, Tracker

ROOT = Path(__file__).resolve().parents[1]

NETWORK = """
import numpy as np, torch
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, 2, 1), torch.nn.ReLU(),
    torch.nn.Conv2d(32, 64, 3, 1, 1), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10),
).eval()
image = torch.randn(1, 3, 64, 64)
torch.export.save(torch.export.export(net, (image,)), "net.pt2")
np.save("picture.npy", image.numpy())
np.save("expected.npy", net(image).detach().numpy())
"""
CHECK = """
import numpy as np
(answer,) = np.load("answer.npz").values()
assert np.allclose(answer, np.load("expected.npy"), atol=1e-4), answer
print("the answer is PyTorch's")
"""
OWN_NETWORK = f"""
tvm-stretch doctor
python - <<'END'{NETWORK}END
tvm-stretch compile net.pt2 -t llvm -t opencl -o net.so
tvm-stretch run net.so --input picture.npy --output answer.npz
python - <<'END'{CHECK}END
tvm-stretch bench net.so
tvm-stretch explain net.so
tvm-stretch timeline net.so -o trace.json
tvm-stretch report net.so -o report.html
test -s report.html
"""
OWN_PASS = f"""
python - <<'END'
import re, pathlib
page = pathlib.Path("{ROOT}/docs/passes.md").read_text()
code = re.findall(r"^```python\\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
pathlib.Path("my_pass.py").write_text("\\n".join(code))
END
python my_pass.py
python - <<'END'{NETWORK}END
tvm-stretch compile net.pt2 --dump ir -o net.so
ls ir
grep -q "conv2d" ir/*canonical*
python {ROOT}/tutorials/01_from_onnx_to_artifact.py
"""
PHONE = f"""
python - <<'END'{NETWORK}END
tvm-stretch compile net.pt2 --device $PHONE -o net.so
tvm-stretch run net.so --device $PHONE --input picture.npy --output answer.npz
python - <<'END'{CHECK}END
tvm-stretch bench net.so --device $PHONE
tvm-stretch plan net.pt2 --device snapdragon-855 -o plan.json
"""
SESSIONS = {"network": OWN_NETWORK, "pass": OWN_PASS, "phone": PHONE}


def session(script: str, phone: str) -> float:
    """The minutes that a session takes in an empty folder.

    Raises:
        SystemExit: a step failed; what it said stands before.
    """
    with tempfile.TemporaryDirectory(prefix="newcomer_") as folder:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TVM_STRETCH_CACHE_DIR": f"{folder}/cache",
            "PHONE": phone,
        }
        begin = time.monotonic()
        command = ["bash", "-exc", script]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(re.sub(r"\n+", "\n", done.stdout + done.stderr)[-4000:])
        return (time.monotonic() - begin) / 60


def main(names: list[str]) -> None:
    """Run sessions, all by default, and print their minutes."""
    tracker = Tracker()
    phone = Phone("--tracker", tracker.address, key="pixel")
    try:
        for name in names or SESSIONS:
            minutes = session(SESSIONS[name], f"{tracker.address}/pixel")
            print(f"newcomer with a {name}: {minutes:.1f} minutes", flush=True)
    finally:
        phone.kill()
        tracker.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
