"""Speed and memory of a face, by stage and batch size, compared with what the machine could reach.

GOMP_SPINCOUNT=10000 python benchmarks/faces.py [--device cuda] [--repeat 5] [--skip-command]

Each stage is compared with a lower bound: its counted operations (multiply and add count as two) divided by the rate of
large matrix products on this machine. The whole is compared with the networks of the iFADIT authors with random
weights, in the same run. Speed does not depend on the weights.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from anonface.backends.flow_backend import FlowBackend
from anonface.crypto.keys import CONSISTENT_SALT, Key, write_key_file
from anonface.pipeline import Engine

EXAMPLES = Path(__file__).parent.parent / "examples"
BATCHES = (1, 4)
SIDE = 256
MATRIX = 1536
MEGAPIXELS_12 = (4000, 3000)
FACES_OF_LARGE = (
    (200, 300, 1500),
    (1900, 200, 900),
    (2900, 250, 900),
    (1900, 1500, 1200),
    (300, 2000, 800),
)  # x, y, side


def seconds(step: Callable[[], object], repeat: int, device: torch.device) -> float:
    """Median wall-clock seconds, after one warm-up run."""
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def operations(step: Callable[[], object]) -> int:
    """Counted floating-point operations of the matrix products and convolutions in a step."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def matmul_rate(device: torch.device, repeat: int) -> float:
    """Operations a second in float32 products of large square matrices."""
    a = torch.rand(MATRIX, MATRIX, device=device)
    return 2 * MATRIX**3 / seconds(lambda: a @ a, 2 * repeat, device)


def stages(engine: Engine, faces: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The steps of one call, for a batch of faces."""
    backend = engine.backend
    assert isinstance(backend, FlowBackend)
    identity, renderer = backend.identity, backend.renderer
    masks = torch.ones_like(faces[:, :1])
    keys = [Key(bytes([n]) * 32).face(CONSISTENT_SALT, backend.name, 0) for n in range(len(faces))]
    codes = identity.embed(faces)
    hidden = identity.flow(codes, identity.keygen(keys))
    each = [(f[None], m[None], h[None], key) for f, m, h, key in zip(faces, masks, hidden, keys, strict=True)]

    def draw() -> None:
        for face, mask, code, key in each:
            renderer.draw(face.to(engine.device), mask.to(engine.device), code, key)

    def write() -> None:
        for face, mask, _, key in each:
            backend.write_watermark(face, face, face, mask, key)

    return {
        "identity": lambda: identity.embed(faces),
        "key and flow": lambda: identity.flow(codes, identity.keygen(keys)),
        "draw": draw,
        "watermark, each look": write,
        "anonymize": lambda: backend.anonymize(faces, masks, keys),
        "recover": lambda: backend.recover(faces, masks, keys),
    }


def official(device: torch.device, batch: int) -> Callable[[], object]:
    """One call of the authors' networks with random weights, for faces of the same size."""
    from anonface.models.ifadit_official import OfficialIFADIT

    torch.manual_seed(0)
    model = OfficialIFADIT().to(device).eval()
    images = torch.rand(batch, 3, SIDE, SIDE, device=device)
    uniform = torch.rand(batch, 512, device=device)
    return lambda: model.anonymize(images, model.key_code(uniform))


def print_stages(engine: Engine, repeat: int, rate: float) -> None:
    photo = np.asarray(Image.open(EXAMPLES / "evening.jpg"))
    found = seconds(lambda: engine.detector.detect(photo), repeat, engine.device)
    print(f"finding the faces of a {photo.shape[1]} x {photo.shape[0]} photo {1000 * found:.1f} ms")
    face = torch.from_numpy(np.array(Image.open(EXAMPLES / "small.jpg"))).permute(2, 0, 1) / 127.5 - 1
    for batch in BATCHES:
        faces = torch.stack([face] * batch)
        print(f"\nbatch of {batch}, ms a face{'':7}measured   counted ideal   ratio")
        times = {}
        for name, step in stages(engine, faces).items():
            with torch.no_grad():
                counted = operations(step) / batch
                times[name] = seconds(step, repeat, engine.device) / batch
            ideal = counted / rate
            ratio = f"{times[name] / ideal:8.1f}" if ideal > 1e-6 else f"{'–':>8}"
            print(f"{name:28} {1000 * times[name]:10.1f} {1000 * ideal:15.1f} {ratio}")
        with torch.inference_mode():
            theirs = seconds(official(engine.device, batch), repeat, engine.device) / batch
        ours = times["anonymize"]
        print(f"{'the authors layout':28} {1000 * theirs:10.1f}")
        print(f"{theirs / ours:.1f} times as fast as the authors' layout")


def large_photo() -> np.ndarray:
    """12 megapixels with five faces."""
    face = Image.open(EXAMPLES / "large.jpg")
    photo = Image.new("RGB", MEGAPIXELS_12, (90, 100, 110))
    for x, y, side in FACES_OF_LARGE:
        photo.paste(face.resize((side, side)), (x, y))
    return np.asarray(photo)


def measure_command(device: str) -> None:
    """Run the command as a user does: in a new process, with all defaults."""
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "k.bin")
        write_key_file(key, Key.generate())
        Image.fromarray(large_photo()).save(Path(folder, "large.png"), compress_level=1)
        base = [
            "anonymize",
            "--key-file",
            str(key),
            "--device",
            device,
            "-o",
            str(Path(folder, "out.png")),
            "--overwrite",
        ]
        for title, args in (
            ("anonface --help", ["--help"]),
            ("one photo, one face, cold", [*base, str(EXAMPLES / "evening.jpg")]),
            ("12 megapixels, five faces", [*base, str(Path(folder, "large.png"))]),
        ):
            start = time.perf_counter()
            code = f"import sys; sys.argv = ['anonface', *{args!r}]; from anonface.cli import main; main()"
            # in a process of its own, because the peak of children is that of the largest child so far
            reading = (
                f"import resource, subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True, "
                "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
                "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
            )
            done = subprocess.run([sys.executable, "-c", reading], check=True, capture_output=True, text=True)
            took = time.perf_counter() - start
            print(f"{title:28} {took:7.2f} s   peak {megabytes(int(done.stdout)):6.0f} MB")


def megabytes(maxrss: int) -> float:
    """Convert getrusage's unit, which is bytes on macOS and KiB elsewhere."""
    return maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", default=5, type=int)
    parser.add_argument("--skip-command", action="store_true", help="leave out the runs of the whole command")
    options = parser.parse_args()

    engine = Engine(device=options.device)
    rate = matmul_rate(engine.device, options.repeat)
    print(f"{engine.device_name}, float32 matrix products at {rate / 1e9:.0f} Gop/s")
    print_stages(engine, options.repeat, rate)
    if engine.device.type == "cuda":
        print(f"\npeak on the device {torch.cuda.max_memory_allocated(engine.device) / 1e6:.0f} MB")
    if not options.skip_command:
        print()
        measure_command(options.device)


if __name__ == "__main__":
    main()
