"""The sign-flip paper's method on a latent diffusion model: invert to noise, transform under the key, denoise.

    z_0..z_T = invert(E(X))                            (equation 3)
    z'_T     = M . T_key(z_T) + (1 - M) . z_T           (equations 4 and 6)
    z'_t     = M . z'_t + (1 - M) . z_t, down to z'_0   (equations 2, 5 and 7)
    X'       = D(z'_0)

Every transform is its own inverse, so recovery takes the same steps. Where the new face's half is guided or less
spread, recovery undoes that.

There are two transforms. ``sign`` is the paper's: it flips signs inside the parsed mask, restores the background's own
inversion outside, and takes one network call a step. ``mix`` also hides |z|, which a sign flip does not. It couples all
cells, so both ends must use the same ones: those of a recorded outline within a fixed region of the aligned canvas, or
the whole region. Around them the background's level t is its clean latent under noise drawn from the key, or, for a
network that was trained so, the clean latent itself. Both ends can rebuild that trajectory. They cannot rebuild the
inverted one, since the face leaks into it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.base import Margin, Parameter, Settings
from anonface.backends.cpu import keep_large_buffers, mixed_precision, multiplies_bfloat16_faster
from anonface.backends.diffusion.ddim import Schedule, denoise, invert, move
from anonface.backends.diffusion.files import load_model
from anonface.backends.diffusion.latent_correction import SettlingParams, settle
from anonface.backends.memory import Memory
from anonface.crypto import keyed_noise
from anonface.crypto.keys import FaceKey
from anonface.errors import DeviceError, UsageError, WeightsError
from anonface.models.latent_diffusion import LatentDiffusion
from anonface.watermark import qim as grain

# Settings of the model trained here. Less spread asks for a later first step: their product is the noise of new faces,
# and the less noise, the more an error of a finished face's latents is magnified. The noise is cleared before the face
# is shown; the grain holds it.
OWN: Settings = {
    "background": "clean",
    "iterations": 0,
    "first": 9,
    "guidance": 0.4,
    "spread": 0.8,
    "settling": 0,
    "clear": 50,
    "grain": 0.15,
}

# Resampling to a photo's grid loses a third or more of the finest detail, so grain is written stronger and repeatedly.
STRENGTH, CORRECTIONS = 1.4, 5


TRANSFORMS: dict[str, Callable[[Tensor, Tensor, FaceKey], Tensor]] = {"mix": keyed_noise.mix, "sign": keyed_noise.flip}
BACKGROUNDS = ("clean", "noised", "trajectory")

LEAST_SEEN = 0.4  # of the fixed region: where a mask leaves less, all of it is replaced

# The fixed region, an ellipse of the aligned canvas: centre and half axes as shares of the side, x before y.
REGION_CENTRE, REGION_AXES = (0.5, 0.57), (0.27, 0.33)


@dataclass(frozen=True)
class DiffusionSettings:
    """What one photo's recovery must repeat.

    Args:
        steps: DDIM steps each way.
        transform: a key of TRANSFORMS.
        background: "trajectory", the inverted one of equation 5, "noised", the clean one under noise of the key, or
            "clean", for networks that were trained to continue it.
        iterations: network calls for each step of inversion; 0: as many as each step needs.
        settling: steps of a correction of the finished photo (``latent_correction.py``); 0 leaves it as it is.
        control: whether the segmentation ControlNet steers both ways.
        first: training step at which steps begin, lying as i^2 from there; -1: even steps, as published.
        guidance: of the new face, :meth:`LatentDiffusion.noise`.
        spread: of the new face's noise: below 1 its faces are nearer to the average, and smoother.
        clear: training step at whose level the new face is taken to be noisy, and cleared before it is shown; what that
            takes away, the grain holds. -1: it is shown as it is.
        grain: of the new face, latents for one grey level of it (``watermark/qim.py``); 0: none.
    """

    steps: int = 50
    transform: str = "mix"
    background: str = "noised"
    iterations: int = 2
    settling: int = 12
    control: bool = False
    first: int = -1
    guidance: float = 0.0
    spread: float = 1.0
    clear: int = -1
    grain: float = 0.0

    @classmethod
    def of(cls, settings: Settings) -> DiffusionSettings:
        """From a parameter map; ``transform`` sets the defaults of the others.

        Raises:
            UsageError: a setting that does not exist, or a value out of its range.
        """
        known = {field.name for field in fields(cls)}
        for name in settings:
            if name not in known:
                raise UsageError(f"backend diffusion has no setting {name!r}", f"known: {', '.join(sorted(known))}")
        published = {"background": "trajectory", "iterations": 1, "settling": 0}
        paper = published if settings.get("transform") == "sign" else {}
        chosen = replace(cls(), **{**paper, **settings})  # type: ignore[arg-type]
        for name, values in (("transform", tuple(TRANSFORMS)), ("background", BACKGROUNDS)):
            value = getattr(chosen, name)
            if value not in values:
                raise UsageError(f"there is no {name} {value!r}", f"choose one of: {', '.join(values)}")
        whole = {
            "steps": (1, 1000),
            "iterations": (0, 100),
            "settling": (0, 100),
            "first": (-1, 999),
            "clear": (-1, 999),
        }
        for name, (least, most) in whole.items():
            value = getattr(chosen, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise UsageError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        for name, (low, high) in {"guidance": (0.0, 10.0), "spread": (0.1, 2.0), "grain": (0.0, 1.0)}.items():
            value = getattr(chosen, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
                raise UsageError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
        if not isinstance(chosen.control, bool):
            raise UsageError(f"control is true or false, not {chosen.control!r}")
        return chosen


class Diffusion:
    """The backend; see ``base.Backend`` for the contract.

    On a CPU one face at a time goes through the networks, no slower than several, so that no rounding depends on the
    rest of a batch; on CUDA a batch goes together.
    """

    name = "diffusion"
    exact = exact_recovery = True
    marked = True
    nonce_keyed = True
    margin: Margin = "none"
    matches_light = False
    batched = True

    def __init__(
        self, model: LatentDiffusion, device: torch.device | str = "cpu", settings: Settings | None = None
    ) -> None:
        keep_large_buffers()
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.resolutions: tuple[int, ...] = model.resolutions
        self._digest = b""
        self._narrowed = False
        self._targets: Memory[Tensor] = Memory()
        self.correcting = SettlingParams()
        fitting: Settings = {"control": model.control is not None}
        if model.continues and (settings or {}).get("transform") != "sign":
            fitting = {**fitting, **OWN}
        self._set(DiffusionSettings.of({**fitting, **(settings or {})}))

    @classmethod
    def load(cls, device: torch.device | str, settings: Settings) -> Diffusion:
        """From files; the setting ``model`` says which, as ``files.load_model`` takes it.

        ``compile`` true hands the UNet to ``torch.compile``: worth its first minutes where many faces follow.

        Raises:
            UsageError, WeightsError: a setting or a file is wrong or missing.
            DeviceError: nothing is there that could compile.
        """
        others = {name: value for name, value in settings.items() if name not in ("model", "compile")}
        DiffusionSettings.of(others)  # before gigabytes are read
        backend = cls(load_model(str(settings.get("model", ""))), device, others)
        if backend.model.continues and multiplies_bfloat16_faster(device):
            backend.narrow()
        if settings.get("compile"):
            backend.compile()
        return backend

    def narrow(self) -> None:
        """Let the UNet and what makes pictures of latents count in bfloat16, for networks of which it is known to do no
        harm.

        Latents and encoding stay float32.
        """
        self.digest()  # is of the weights as they were read
        self._narrowed = True
        # not diffusers' own `to`, which warns of modules that no UNet here has
        torch.nn.Module.to(self.model.unet, torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def compile(self) -> None:
        """Let ``torch.compile`` make the UNet's code for one face, now rather than at the first photo.

        Raises:
            DeviceError: it has no compiler: a CPU needs one for C++, CUDA needs Triton.
        """
        self.model.unet.compile()
        try:
            self.model.noise(torch.zeros(1, self.model.channels, self.model.side, self.model.side).to(self.device), 1)
        except Exception as error:  # whatever a missing or broken compiler raises
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DeviceError(
                f"the network cannot be compiled here: {reason}",
                "leave --compile out; it needs a C++ compiler on a CPU, and Triton on CUDA",
            ) from error

    def _set(self, settings: DiffusionSettings) -> None:
        trained = self.model.diffusion.config.num_train_timesteps
        if settings.steps > trained:
            raise UsageError(f"the model knows {trained} steps, not {settings.steps}")
        if settings.control and self.model.control is None:
            raise WeightsError(
                "this photo needs the segmentation ControlNet, which the model does not hold",
                "put controlnet_epoch_15.pth into the model's folder",
            )
        if settings.first + settings.steps > trained:
            raise UsageError(f"the model knows {trained} steps, not {settings.steps} from step {settings.first} on")
        if settings.clear >= trained:
            raise UsageError(f"the model knows {trained} steps, and so no step {settings.clear} to clear faces at")
        if settings.grain and self.model.resolution < 4 * self.model.side:
            raise UsageError("this model's latents are too fine for grain", "grain needs 4 px for each of them")
        if settings.guidance and not self.model.guidable:
            raise UsageError("this model cannot be guided", "guidance is for networks that nothing else steers")
        self.settings = settings
        # the mix couples all cells, so both ends need the same; a sign flip only loses what a cell too many holds
        self.records_masks = settings.transform == "mix"
        self.schedule = Schedule.of(self.model.diffusion, settings.steps, settings.first)

    @property
    def corrections(self) -> int:
        return CORRECTIONS if self.settings.grain else 2

    def parameters(self) -> dict[str, Parameter]:
        return asdict(self.settings)

    def under(self, settings: Settings) -> Diffusion:
        """The same loaded networks under other settings, a header's for instance."""
        other = copy.copy(self)
        other._targets = Memory()  # other settings give other latents
        other._set(DiffusionSettings.of({**self.parameters(), **settings}))
        return other

    def digest(self) -> bytes:
        """SHA-256 over all numbers of the networks."""
        if not self._digest:
            total = hashlib.sha256()
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            self._digest = total.digest()
        return self._digest

    def visible(self, masks: Tensor) -> Tensor:
        """The transformed cells and one around, softly bordered: recovery needs every pixel that the key has moved."""
        cells = self.cells(masks)
        factor = masks.shape[-1] // cells.shape[-1]
        grown = F.interpolate(_grown(cells), scale_factor=factor)
        border = factor // 2 * 2 + 1
        return F.avg_pool2d(grown, border, 1, border // 2, count_include_pad=False)

    def cells(self, masks: Tensor) -> Tensor:
        """Which latents the key transforms, bool [B, 1, S, S], for masks [B, 1, R, R] in 0..1."""
        if self.settings.transform == "sign":
            return F.adaptive_max_pool2d(masks, self.model.side) > 0
        region = fixed_region(self.model.side)
        seen = (F.adaptive_avg_pool2d(masks, self.model.side) > 0.5) & region
        enough = seen.sum((1, 2, 3), keepdim=True) >= LEAST_SEEN * region.sum()
        return torch.where(enough, seen, region)

    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] -> synthetic faces, to be seen where :meth:`visible` is 1."""
        pictures, latents = self._walk(faces, masks, keys)
        for face, key, target in zip(faces, keys, latents[:, None], strict=True):
            self._targets.keep(face, key, target)
        return pictures

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        return self._walk(faces, masks, keys, back=True)[0]

    def write_watermark(
        self, shown: Tensor, face: Tensor, original: Tensor, mask: Tensor, key: FaceKey
    ) -> Tensor | None:
        """A correction after which the finished face is read as the latents that :meth:`anonymize` ended with."""
        if not self.settings.settling and not self.settings.grain:
            return None
        target = self._targets.recall(face[0], key)
        if target is None:
            self.anonymize(face, mask, [key])
            target = self._targets.recall(face[0], key)
            assert target is not None
        shown = shown.to(self.device)
        if self.settings.grain:
            return self._missing_grain(shown, target, self.cells(mask).to(self.device)).cpu()
        params = replace(self.correcting, steps=self.settings.settling)
        placed = (shown, self.visible(mask).to(self.device), target)
        return settle(*placed, self.model.read, params).cpu()

    @torch.inference_mode()
    def _missing_grain(self, shown: Tensor, target: Tensor, cells: Tensor) -> Tensor:
        """The grain that a finished face [1, 3, R, R] still lacks."""
        return STRENGTH * grain.write(shown, target - self.model.read(shown), self.settings.grain, _grown(cells))

    @torch.inference_mode()
    def _read(self, faces: Tensor, cells: Tensor) -> Tensor:
        """The latents of finished faces: what the encoder reads, and the grain where there is one."""
        latents = self.model.read(faces)
        if not self.settings.grain:
            return latents
        each = (grain.read(face[None], latents.shape[1], latents.shape[2], self.settings.grain) for face in faces)
        return latents + torch.cat(list(each)) * _grown(cells)

    def _picture(self, latents: Tensor, side: int) -> Tensor:
        with mixed_precision(self.device) if self._narrowed else nullcontext():
            return self.model.picture(latents, side)

    @torch.inference_mode()
    def _walk(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey], back: bool = False) -> tuple[Tensor, Tensor]:
        """The pictures, and the latents that they were decoded from."""
        side = faces.shape[-1]
        if side not in self.resolutions or faces.shape[1:] != (3, side, side) or masks.shape[1:] != (1, side, side):
            sizes = " or ".join(map(str, self.resolutions))
            raise ValueError(f"faces and masks must have {sizes} px, not {tuple(faces.shape)}, {tuple(masks.shape)}")
        if not len(faces) == len(masks) == len(keys):
            raise ValueError(f"{len(faces)} faces, {len(masks)} masks and {len(keys)} keys: one of each is needed")
        batched = len(faces) if self.device.type == "cuda" else 1
        pictures, everyone = [], []
        for start in range(0, len(faces), batched):
            part = slice(start, start + batched)
            seen, cells = faces[part].to(self.device), self.cells(masks[part]).to(self.device)
            clean = self._read(seen, cells) if back else self.model.read(seen)
            latents = self.transform_latents(clean, cells, keys[part], back)
            shown = latents if back else torch.where(cells, self._cleared(latents), latents)
            pictures.append(self._picture(shown, side).to(faces.device))
            everyone.append(latents)
        return torch.cat(pictures), torch.cat(everyone)

    def _cleared(self, latents: Tensor) -> Tensor:
        """Latents as they are shown: without the noise that is left, as the network sees it."""
        step = self.settings.clear
        if step < 0:
            return latents
        return move(latents, self.model.noise(latents, step), float(self.model.diffusion.alphas_cumprod[step]), 1.0)

    @torch.inference_mode()
    def transform_latents(self, clean: Tensor, cells: Tensor, keys: Sequence[FaceKey], back: bool = False) -> Tensor:
        """Clean latents [B, C, S, S] -> transformed ones, or ``back``. Every latent in between is erased.

        The new face is guided, and its noise has the spread of the settings. The original's steps are plain both ways.
        """
        control = self.model.control if self.settings.control else None
        hint = None
        if control is not None:
            factor = self.model.resolution // self.model.side
            hint = control.hint(F.interpolate(cells.float(), scale_factor=factor).expand(-1, 3, -1, -1))

        def plain(latents: Tensor, timestep: int) -> Tensor:
            return self.model.noise(latents, timestep, hint)

        def guided(latents: Tensor, timestep: int) -> Tensor:
            return self.model.noise(latents, timestep, hint, self.settings.guidance)

        transform, spread = TRANSFORMS[self.settings.transform], self.settings.spread
        up, down = (guided, plain) if back else (plain, guided)
        held: list[Tensor] = []  # the background's levels, where they do not come out of the inversion
        trajectory: list[Tensor] = []
        try:
            if self.settings.background != "trajectory":
                noise = torch.stack([keyed_noise.background_noise(key, clean.shape[1:]) for key in keys])
                held = self.schedule.noised(clean, noise.to(clean))
            if self.settings.background == "clean":  # but for what a mask leaves of the region, as in training
                region = fixed_region(self.model.side).to(clean.device)
                for level in held[1:]:
                    torch.where(region, level, clean, out=level)
            trajectory = invert(clean, up, self.schedule, self.settings.iterations, cells, held or None)
            if back:
                trajectory[-1][cells.expand_as(clean)] /= spread
            turned = torch.stack([transform(*face) for face in zip(trajectory[-1], cells[:, 0], keys, strict=True)])
            if not back:
                turned[cells.expand_as(clean)] *= spread
            return denoise(turned, down, self.schedule, cells, held or trajectory)
        finally:
            for latents in (*held[1:], *trajectory[1:]):
                latents.zero_()


def fixed_region(side: int) -> Tensor:
    """Cells of a latent [side, side] whose middle lies in the fixed region, bool."""
    places = (torch.arange(side) + 0.5) / side
    x, y = ((places - centre) / axis for centre, axis in zip(REGION_CENTRE, REGION_AXES, strict=True))
    return y[:, None] ** 2 + x[None] ** 2 <= 1


def _grown(cells: Tensor) -> Tensor:
    """Cells bool [B, 1, S, S] and those around, as 0 and 1."""
    return F.max_pool2d(cells.float(), 3, 1, 1)
