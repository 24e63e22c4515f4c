"""Networks of the form of DBAF and HFORD that lose nothing, for the tests of what is done with them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.backends.latent_editing.backend import LatentEditingBackend
from anonface.models.identity import IdentityEncoder
from anonface.models.inversion import CODE_OF_LATENT
from anonface.models.latent_editing import CODES, FaceEditor, LatentEditor

SIDE, CELL, CODE = 256, 8, 512  # px of a face, px of a cell, numbers of a code
CELLS = SIDE // CELL


class CellEncoder(nn.Module):
    """The colours of a face's cells, one after the other, are its codes."""

    def forward(self, faces: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        colours = F.avg_pool2d(faces, faces.shape[-1] // CELLS).flatten(1)
        codes = F.pad(colours, (0, CODES * CODE - colours.shape[1])).unflatten(1, (CODES, CODE))
        return codes, ()

    def to_u(self, w: Tensor) -> Tensor:
        return w

    def to_latents(self, codes: Tensor) -> Tensor:
        return codes[:, list(CODE_OF_LATENT)]


class CellGenerator(nn.Module):
    """The inverse of :class:`CellEncoder`."""

    def synthesize(self, w_plus: Tensor, size: int, window: object = None, details: dict | None = None) -> Tensor:
        codes = w_plus[:, [CODE_OF_LATENT.index(i) for i in range(CODES)]].flatten(1)
        colours = codes[:, : 3 * CELLS**2].unflatten(1, (3, CELLS, CELLS))
        return F.interpolate(colours, (size, size))


class Nothing(nn.Module):
    """No attributes; identity is all."""

    def forward(self, codes: Tensor) -> Tensor:
        return torch.zeros_like(codes)


class Signs(nn.Module):
    """The key's signs change those of the identity, which is its own inverse."""

    def forward(self, joined: Tensor) -> Tensor:
        key, identity = joined.chunk(2, dim=2)
        return key.sign() * identity


class Unchanged(nn.Module):
    def forward(self, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return features


class NoMaps(LatentEditor):
    """Nothing is kept beside the codes."""

    def details(self, features: tuple[Tensor, ...], replaced: Tensor | None = None) -> dict:
        return {}


def lossless(name: str) -> LatentEditingBackend:
    torch.manual_seed(0)
    editor = NoMaps(Nothing(), Signs(), Unchanged(), CODE)
    for shortcut in (editor.kept, editor.lent):
        nn.init.zeros_(shortcut)
    networks = FaceEditor(CellEncoder(), editor, CellGenerator())
    backend = LatentEditingBackend(name, networks, nn.Linear(CODE, CODE, bias=False), IdentityEncoder())
    backend.reached = CODE  # these codes have no principal coordinates
    return backend


def cell_faces(count: int) -> Tensor:
    """8-bit pictures [count, 3, 256, 256] in [-1, 1] of cells in random colours."""
    colours = 0.4 * torch.randn(count, 3, CELLS, CELLS, generator=torch.Generator().manual_seed(3))
    return (F.interpolate((colours.clamp(-1, 1) + 1) * 127.5, (SIDE, SIDE))).round() / 127.5 - 1
