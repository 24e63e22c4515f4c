"""Time the networks of the authors' iFADIT, one by one and together, with random weights.

python benchmarks/official_networks.py [--device cuda] [--batch 1] [--repeat 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from faces import seconds

from anonface.models.ifadit_official import OfficialIFADIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--batch", default=1, type=int)
    parser.add_argument("--repeat", default=5, type=int)
    options = parser.parse_args()

    torch.manual_seed(0)
    ifadit = OfficialIFADIT().to(options.device).eval()
    images = torch.rand(options.batch, 3, 256, 256, device=options.device)
    with torch.inference_mode():
        key = ifadit.key_code(torch.rand(options.batch, 512, device=options.device))
        identity, attributes = ifadit.identity(images), ifadit.attributes(images)
        styles = ifadit.styles(identity, attributes)
        steps: dict[str, Callable[[], object]] = {
            "identity encoder": lambda: ifadit.identity(images),
            "attribute encoder": lambda: ifadit.attributes(images),
            "identity flow": lambda: ifadit.flow(identity, key),
            "mapper": lambda: ifadit.styles(identity, attributes),
            "generator": lambda: ifadit.generator(styles),
            "anonymize": lambda: ifadit.anonymize(images, key),
            "recover": lambda: ifadit.recover(images, key),
        }
        print(f"{options.device}, {torch.get_num_threads()} threads, batch of {options.batch}, ms a face")
        for name, step in steps.items():
            print(f"{name:18} {1000 * seconds(step, options.repeat, options.device) / options.batch:9.1f}")


if __name__ == "__main__":
    main()
