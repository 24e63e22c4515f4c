"""iFADIT's default family: identity and attributes apart, identity through the keyed flow, rendered by MobileStyleGAN.

    anonymize   w = M(T(E_ID(X), s), E_Attr(X))              (equation 9)
    recover     w = M(T^-1(C(E_ID(X'')), s), E_Attr(X''))    (equation 10)

followed by latent refinement against the same codes (``refine.py``); in the finished photo a faint pattern makes the
code exact (``imprint.py``). The flow runs in float64 on the CPU, so that its
inverse is the same on every machine.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface import weights
from anonface.backends.base import Parameter, Settings
from anonface.backends.generator import GENERATOR_FILES, load_generator, load_mapping
from anonface.backends.imprint import ImprintParams, imprint, read
from anonface.backends.looks import shrink
from anonface.backends.refine import DISGUISE, RESTORE, Networks, RefineParams, match_tones, refine
from anonface.errors import UsageError
from anonface.keys import FaceKey
from anonface.models.attributes import AttributeEncoder, IdentityCompensation, LatentMapper
from anonface.models.face_parser import FaceParser
from anonface.models.graph import Graph
from anonface.models.identity import CONDITIONS, IdentityEncoder
from anonface.models.sif import SIF, FlowKey, SIFParams, turns_from_normals

FINEST_HEAD = 512  # px
TRAINED_FILES = ("identity", "attributes", "mapper", "flow", "compensation")


@dataclass(frozen=True)
class IFADITSettings:
    """What one photo's recovery must repeat.

    Attributes:
        refine: refinement steps of a disguise; a restored face and an imprint take half as many again.
            0 is the networks alone.
        free: which of CONDITIONS the key may change, comma-separated; the others stay as they are.
    """

    refine: int = 20
    free: str = ""

    @classmethod
    def of(cls, settings: Settings) -> IFADITSettings:
        known = {f.name for f in fields(cls)}
        for name in settings:
            if name not in known:
                raise UsageError(f"backend ifadit has no setting {name!r}", f"known: {', '.join(sorted(known))}")
        steps = settings.get("refine", cls.refine)
        if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps <= 1000:
            raise UsageError(f"setting refine must be a whole number from 0 to 1000, not {steps!r}")
        freed = {name for name in str(settings.get("free", cls.free)).split(",") if name}
        if unknown := freed - set(CONDITIONS):
            raise UsageError(f"cannot free {', '.join(sorted(unknown))}", f"one or more of {', '.join(CONDITIONS)}")
        return cls(steps, ",".join(name for name in CONDITIONS if name in freed))


class KeyGen:
    """Equation 4, k = f(Norm(KDF(s))), beside the key's own mix and its mirrors of freed conditions."""

    def __init__(self, params: SIFParams, device: torch.device | str = "cpu") -> None:
        self.params = params
        self.mapping = load_mapping(device)

    def __call__(self, keys: Sequence[FaceKey], free: str = "") -> FlowKey:
        p = self.params
        unit = np.stack([key.signed_unit("flow", p.key) for key in keys])
        device = next(self.mapping.parameters()).device
        with torch.inference_mode():
            k = self.mapping(torch.from_numpy(unit).to(device)).cpu().double()
        shape = p.mixes
        normals = np.stack([key.normal("mix", int(np.prod(shape))).reshape(shape) for key in keys])
        low, high = p.cosines
        cosines = low + (high - low) * (np.concatenate([key.signed_unit("angle", 1) for key in keys]) + 1) / 2
        mirror = torch.ones(len(keys), p.kept, dtype=torch.float64)
        for name, where in CONDITIONS.items():
            if name in free.split(","):
                mirror[:, where] = torch.tensor([[1.0 - 2 * (key.stream(f"free {name}", 1)[0] & 1)] for key in keys])
        return FlowKey(k, torch.from_numpy(turns_from_normals(normals, cosines)), mirror)


class IFADIT:
    """The backend; see ``base.Backend`` for the contract."""

    name = "ifadit"
    exact = False
    together = False
    outlined = False
    corrections = 1
    resolution = 256  # at which the networks look; renders have the size of the crop
    resolutions: tuple[int, ...] = (256, 512, 1024)

    def __init__(self, device: torch.device | str = "cpu", settings: Settings | None = None) -> None:
        self.device = torch.device(device)
        self.settings = IFADITSettings.of(settings or {})
        self.flow, self.compensation = SIF(), IdentityCompensation()
        encoder, self.attributes, mapper = IdentityEncoder(), AttributeEncoder(), LatentMapper()
        parser = FaceParser()
        parts = (encoder, self.attributes, mapper, self.flow, self.compensation, parser)
        for module, name in zip(parts, (*TRAINED_FILES, "face-parser"), strict=True):
            weights.load(module, name)
            module.requires_grad_(False).eval().to(self.device)
        self.flow.double().cpu()
        self.networks = Networks(
            load_generator(self.device),
            encoder,
            mapper,
            Graph(weights.graph("landmarks")).eval().to(self.device),
            parser,
        )
        self.keygen = KeyGen(self.flow.params)
        self.disguise, self.restoration, self.imprinting = DISGUISE, RESTORE, ImprintParams()
        self._pace()

    def _pace(self) -> None:
        """Take the steps that the settings give to each optimisation."""
        steps, more = self.settings.refine, self.settings.refine * 3 // 2
        self.disguise, self.restoration = replace(self.disguise, steps=steps), replace(self.restoration, steps=more)
        self.imprinting = replace(self.imprinting, steps=more)

    def parameters(self) -> dict[str, Parameter]:
        freed = {"free": self.settings.free} if self.settings.free else {}
        return {"refine": self.settings.refine, **freed}

    def under(self, settings: Settings) -> IFADIT:
        """The same loaded networks under other settings, a header's for instance."""
        other = copy.copy(self)
        # what a header does not say of freed conditions is that none were; only steps may come from elsewhere
        other.settings = IFADITSettings.of({"refine": self.settings.refine, **settings})
        other._pace()
        return other

    def digest(self) -> bytes:
        # not the parser's: masks come from it too, and every photo made with an older one can be led back with a newer
        names = (*GENERATOR_FILES, *TRAINED_FILES, "landmarks")
        return hashlib.sha256("".join(weights.digest(name) for name in names).encode()).digest()

    def visible(self, masks: Tensor) -> Tensor:
        """The masks themselves."""
        return masks

    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] -> somebody else, in the faces' own colours of light; not yet composited."""
        codes = [self.hide(face[None], key) for face, key in zip(faces, keys, strict=True)]
        return self._render(faces, masks, torch.cat(codes), self.disguise)

    def hide(self, face: Tensor, key: FaceKey) -> Tensor:
        """T(E_ID(X), s) of one face, the code of whom it is to become: [1, 448], float64 on the CPU."""
        return self.flow(self.embed(face), self.keygen([key], self.settings.free))

    def imprint(self, shown: Tensor, face: Tensor, mask: Tensor, frame: Tensor, key: FaceKey) -> Tensor | None:
        if self.imprinting.steps == 0:
            return None
        target = self.hide(face, key).float().to(self.device)
        shown, mask, frame = (x.to(self.device) for x in (shown, mask, frame))
        return imprint(shown, mask, target, frame, self.networks.encoder, self.imprinting).cpu()

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        codes = [self.lead(face[None], key) for face, key in zip(faces, keys, strict=True)]
        return self._render(faces, masks, torch.cat(codes), self.restoration)

    def lead(self, face: Tensor, key: FaceKey) -> Tensor:
        """T^-1(C(E_ID(X'')), s) of one finished face, the code of whom it leads back to: [1, 448], float64, CPU."""
        return self.flow.inverse(self.read(face), self.keygen([key], self.settings.free))

    @torch.inference_mode()
    def embed(self, faces: Tensor) -> Tensor:
        """Unit identity codes [B, 448], float64 on the CPU."""
        codes = [self.networks.encoder(face[None].to(self.device)) for face in faces]
        return F.normalize(torch.cat(codes).cpu().double(), dim=1)

    @torch.inference_mode()
    def read(self, face: Tensor) -> Tensor:
        """C(E_ID(X'')) of one finished face [1, 3, R, R], as it looks or its imprint says: [1, 448], float64, CPU."""
        face, encoder = face.to(self.device), self.networks.encoder
        code = read(face, encoder) if self.imprinting.steps else encoder(face)
        return self.compensation(code).cpu().double()

    def latents(self, face: Tensor, code: Tensor) -> Tensor:
        """M(z, E_Attr(X)) for one face."""
        with torch.no_grad():
            return self.networks.mapper(code, self.attributes(face))

    def _render(self, faces: Tensor, masks: Tensor, codes: Tensor, params: RefineParams) -> Tensor:
        """One face at a time, as all above: no slower here, and no rounding depends on the rest of the batch."""
        renders = []
        for face, mask, code in zip(faces, masks, codes.float(), strict=True):
            face, mask, target = face[None].to(self.device), mask[None].to(self.device), code[None].to(self.device)
            small, small_mask = shrink(face, self.resolution), shrink(mask, self.resolution)
            w = self.latents(small, target)
            w = refine(w, small, small_mask, target, self.networks, params)
            with torch.no_grad():
                # a 256-px crop gets the 512-px head too, shrunk: it is the better one
                render = self.networks.generator.synthesize(w, max(FINEST_HEAD, face.shape[-1]))
                renders.append(match_tones(shrink(render, face.shape[-1]), face, mask).clamp(-1, 1))
        return torch.cat(renders)
