"""Import facexlib and diffusers where torchvision's compiled operators do not fit the installed torch.

Both packages import torchvision. Its wheels carry operators compiled for one build of torch; beside another build
(most often a CPU one) the import of torchvision itself ends in "operator torchvision::nms does not exist". Neither
package needs more of the compiled part than non-maximum suppression, so in that case, and only then, the missing
operators are declared here, that one in plain torch.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_SYMPTOM = "operator torchvision::"
_MISSING = ("nms", "qnms")
# A library's registrations live as long as the object, hence a module-level reference.
_libraries: list[torch.library.Library] = []
_lock = threading.Lock()


def load(name: str) -> ModuleType:
    """Import a module that needs torchvision, such as "facexlib.detection.retinaface" or "diffusers".

    Raises:
        ImportError: if the module, or something it needs, is not installed.
    """
    repair_torchvision()
    return importlib.import_module(name)


def repair_torchvision() -> bool:
    """Make `import torchvision` work if it can be; tell whether that took declaring operators.

    Does nothing where torchvision is absent or imports as it is. Any other failure of its import is passed on.
    """
    with _lock:
        try:
            importlib.import_module("torchvision")
        except ModuleNotFoundError as error:
            if error.name != "torchvision":
                raise
        except RuntimeError as error:
            if _SYMPTOM not in str(error) or _libraries:
                raise
            _import_with_declared_operators()
        return bool(_libraries)


def _import_with_declared_operators() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _MISSING:
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", suppress, "CompositeExplicitAutograd")
    _libraries.append(library)
    importlib.import_module("torchvision")
    # torchvision's own wrapper refuses to run without the compiled library, although the operator is there now.
    operations: Any = importlib.import_module("torchvision.ops")
    operations.nms = operations.boxes.nms = suppress


def suppress(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Greedy non-maximum suppression.

    Args:
        boxes: [N, 4] as (x1, y1, x2, y2).
        scores: [N].
        iou_threshold: a box that overlaps a better one by more than this is dropped.

    Returns:
        Indices of the boxes kept, best first, int64.
    """
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    waiting = scores.argsort(descending=True)
    kept: list[Tensor] = []
    while len(waiting):
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        low = torch.maximum(boxes[waiting, :2], boxes[best, :2])
        high = torch.minimum(boxes[waiting, 2:], boxes[best, 2:])
        shared = (high - low).clamp(min=0).prod(dim=1)
        overlap = shared / (area[waiting] + area[best] - shared)
        waiting = waiting[overlap <= iou_threshold]
    return torch.stack(kept) if kept else waiting
