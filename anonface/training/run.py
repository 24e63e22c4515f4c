"""The recipes of ``anonface train``.

Recipes of ``ifadit``, in order: heads, parser, identity, attributes, flow, ifadit. ``ethnicity`` needs identity;
``regressor`` (the latent attribute regression) needs the first three; ``critic`` needs census and inversion too;
``critic-again`` needs all networks of the backend. Each loads the results of earlier ones from the package's
``trained``.

Other recipes keep their results in the run's folder, which can then be used as a model: autoencoder, then diffusion,
then sharpener; reader, then inversion, then dbaf and hford.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from anonface import weights
from anonface.backends.diffusion.files import load_model, run_files
from anonface.backends.generator import load_generator, load_mapping
from anonface.backends.latent_editing.backend import EDITORS, ENCODER
from anonface.errors import UsageError, WeightsError
from anonface.faces.analysis import load_analysis_networks
from anonface.models.attribute_classifiers import SexAgeClassifier
from anonface.models.attribute_encoder import AttributeEncoder, IdentityCompensation, LatentMapper, MobileNetV2Features
from anonface.models.code_landmarks import CodeLandmarks
from anonface.models.discriminator import Discriminator, FeatureDiscriminator
from anonface.models.face_parser import FaceParser
from anonface.models.graph import Graph
from anonface.models.identity import IdentityEncoder
from anonface.models.identity_flow import SecureIdentityFlow
from anonface.models.inpainter import LARGE, Inpainter
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_attributes import WIDTHS, columns
from anonface.models.latent_diffusion import OWN_AUTOENCODER, OWN_SCHEDULE, OWN_UNET, LatentDiffusion, build
from anonface.models.latent_editing import FaceEditor
from anonface.models.sharpener import Sharpener
from anonface.training.data import FaceBank, FacePool, jitter, load_bank, photograph
from anonface.training.diffusion import AutoencoderObjective, NoiseObjective, start_from_block_means
from anonface.training.heads import HeadsObjective
from anonface.training.identity import IdentityObjective, start_from_teachers
from anonface.training.ifadit import Fixed, FlowWarmUp, PhaseOne, PhaseTwo, principal_latents
from anonface.training.inpainter import (
    FEATURE_SPREADS,
    FEATURE_WIDTHS,
    TAPS,
    InpainterObjective,
    InpainterTeachers,
    fit_code_landmarks,
    start_inpainter,
)
from anonface.training.latent_attributes import (
    ASKED,
    fit_latent_attributes,
    load_attribute_samples,
    recognition_gradients,
)
from anonface.training.latent_editing import (
    CoveredPool,
    DBAFObjective,
    EditingObjective,
    HFORDObjective,
    InversionObjective,
    RetentionObjective,
    Teachers,
)
from anonface.training.latent_reader import (
    LatentReader,
    ReadBank,
    ReadEditing,
    ReaderObjective,
    ReadInversion,
    load_read_bank,
)
from anonface.training.loop import LoopSettings, Objective, Then, train
from anonface.training.masks import load_masks
from anonface.training.parser import ParserObjective
from anonface.training.portraits import SHARD, PortraitNetworks, Portraits, draw_shard, load_shards, photo_files
from anonface.training.recognizer import load_recognizer
from anonface.training.sharpener import DetailPool, SharpenerObjective

CENSUS, FINE, PORTRAITS, CODE_LANDMARKS = "census", "inpainter-fine", "portraits", "code-landmarks"


@dataclass(frozen=True)
class Request:
    """The user's request.

    Attributes:
        folder: of the run.
        steps: number of steps; 0: the recipe's default.
        minutes: time limit; 0: none.
        seed: of weights and data.
        faces: number of faces to draw.
        device: of the training, if the recipe supports it.
        photos: folders of real photos for ``portraits``; without any it only draws faces.
    """

    folder: Path
    steps: int = 0
    minutes: float = 0.0
    seed: int = 1
    faces: int = 3600
    device: str = "cpu"
    photos: tuple[Path, ...] = ()

    def settings(self, name: str, steps: int, rate: float) -> LoopSettings:
        """The settings of a recipe's training loop.

        Args:
            steps: the recipe's default.
            rate: the initial learning rate.
        """
        folder, length = self.folder / name, self.steps or steps
        return LoopSettings(folder, length, rate, betas=(0.9, 0.99), seed=self.seed, minutes=self.minutes)


Progress = Callable[[int, int], None]


def train_command(
    what: str, request: Request, progress: Progress = lambda done, total: None
) -> Iterator[dict[str, float]]:
    """Run or resume one recipe; yields the logged losses of every step.

    In an empty folder the result is a function of the request, up to rounding. Rounding depends on the processor or GPU
    and, except for ON_ONE_THREAD, on the number of threads.

    Args:
        what: a key of RECIPES or FITTED.
        progress: called with (faces drawn, faces in all) while training data are drawn.

    Raises:
        UsageError: there is no such recipe.
        WeightsError: a file that the recipe builds on is missing.
    """
    if what not in RECIPES and what not in FITTED:
        names = ", ".join((*RECIPES, *FITTED))
        raise UsageError(f"there is nothing called {what!r} to train", f"choose one of: {names}")
    if request.device != "cpu" and what not in PACES:
        raise UsageError(f"{what} is trained on the CPU only", f"--device is for {', '.join(PACES)}")
    torch.manual_seed(request.seed)  # for the initial weights
    with _one_thread() if what in ON_ONE_THREAD else nullcontext():
        if what in FITTED:
            yield FITTED[what](request, progress)
            return
        objective, settings = RECIPES[what](request, progress)
        yield from train(objective, settings)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _heads(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    objective = HeadsObjective(load_generator(heads=False), load_mapping(), batch=2, pool=192)
    return objective, request.settings("heads", 2200, 2e-3)


def _parser(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    if len(request.photos) != 1:
        raise UsageError("the parser learns from photos with masks", "name their folder with --photos")
    parser, photos = FaceParser(), load_masks(request.folder / "masks.safetensors", request.photos[0], progress)
    _start_from_imagenet(parser.backbone)
    return ParserObjective(parser, photos), request.settings("parser", 1600, 6e-4)


def _identity(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    encoder = IdentityEncoder()
    start_from_teachers(encoder, weights.graph("teacher-a"), weights.graph("teacher-b"))
    apparent = SexAgeClassifier(weights.graph("faceres"))
    return IdentityObjective(encoder, _bank(request, progress), apparent), request.settings("identity", 800, 1e-4)


def _attributes(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    objective = PhaseOne(_fixed(), _bank(request, progress), rendered_from=500)
    return objective, request.settings("attributes", 2000, 1e-3)


def _flow(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    fixed, bank = _fixed(), _bank(request, progress)
    rng = torch.Generator().manual_seed(request.seed)
    with torch.inference_mode():  # each face as drawn, and with two random augmentations
        codes = [
            fixed.encoder(faces if version == 0 else jitter(photograph(faces, rng), rng))
            for version in range(3)
            for faces in (bank.faces(slice(i, i + 32)) for i in range(0, len(bank), 32))
        ]
    objective = FlowWarmUp(SecureIdentityFlow(), IdentityCompensation(), torch.cat(codes).clone(), fixed.mapping)
    return objective, request.settings("flow", 600, 3e-4)


def _phase_two(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    parts = AttributeEncoder().eval(), LatentMapper(), SecureIdentityFlow(), IdentityCompensation()
    for module, name in zip(parts, ("attributes", "mapper", "flow", "compensation"), strict=True):
        weights.load(module, name)
    objective = PhaseTwo(_fixed(), _bank(request, progress), *parts)
    return objective, request.settings("phase-two", 2000, 2e-4)


def _fit_latent_attributes(request: Request, progress: Progress) -> dict[str, float]:
    """Draw faces, fit the regression and save it; returns the explained variance of held-out faces per attribute."""
    file, generator, eyes = request.folder / "people.safetensors", load_generator(), load_analysis_networks()
    parser = FaceParser()
    weights.load(parser, "face-parser")
    samples = load_attribute_samples(
        file, generator, load_mapping(), eyes, parser.requires_grad_(False).eval(), request.faces, progress=progress
    )
    gradients = recognition_gradients(samples.styles[:ASKED], generator, eyes, load_recognizer(), progress)
    regression, explained = fit_latent_attributes(samples, gradients)
    _save_fitted(regression, request, CENSUS)
    return {f"R² {name}": float(explained[columns(name)].mean()) for name in WIDTHS}


def _save_fitted(module: nn.Module, request: Request, name: str) -> None:
    from safetensors.torch import save_file

    folder = request.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    state = {key: value.half().contiguous() for key, value in module.state_dict().items()}
    save_file(state, str(folder / f"{name}.safetensors"))


def _draw_portraits(request: Request, progress: Progress) -> dict[str, float]:
    """Draw the missing shards of all photos and as many faces, in any order: several processes may share a folder."""
    networks = PortraitNetworks.load()
    photos = photo_files(request.photos)
    shards = -(-(len(photos) + request.faces) // SHARD)
    files = [request.folder / PORTRAITS / f"{number:05}.safetensors" for number in range(shards)]
    while missing := [number for number, file in enumerate(files) if not file.exists()]:
        # the first rows are kept out of training; of the rest another process seldom takes the same
        number = 0 if 0 in missing else random.choice(missing)
        draw_shard(files[number], number, photos, networks, request.seed)
        progress((shards - len(missing) + 1) * SHARD, shards * SHARD)
    return {"rows": float(shards * SHARD)}


def _fit_code_landmarks(request: Request, progress: Progress) -> dict[str, float]:
    """Fit the regression to the run's portraits and save it; returns the explained variance of held-out faces."""
    regression, explained = fit_code_landmarks(_portraits(request), _landmark_network())
    _save_fitted(regression, request, CODE_LANDMARKS)
    return {"R²": explained}


def _portraits(request: Request) -> Portraits:
    folder = request.folder / PORTRAITS
    if len(list(folder.glob("*.safetensors"))) < 2:
        raise WeightsError(f"{folder} has no training data", f"run `anonface train {PORTRAITS}` there first")
    return load_shards(folder, {})


def _inpainter(
    request: Request, progress: Progress, name: str = "inpainter", rate: float = 4e-4
) -> tuple[Objective, LoopSettings]:
    batch, steps = _pace(name, request.device)
    rows = _portraits(request)
    recognizer, landmarks, features, parser = load_recognizer(), _landmark_network(), _features(), FaceParser()
    features.taps = TAPS
    code_landmarks = CodeLandmarks()
    for module, file in ((parser, "face-parser"), (code_landmarks, CODE_LANDMARKS)):
        weights.load(module, file)
    teachers = InpainterTeachers(_encoder(), recognizer, landmarks, features, parser.eval(), code_landmarks)
    for module in vars(teachers).values():
        module.requires_grad_(False)
    inpainter, judge = Inpainter(LARGE if name == FINE else None), FeatureDiscriminator(FEATURE_WIDTHS, FEATURE_SPREADS)
    if not (request.folder / name / "state.pt").is_file():
        if name == FINE:
            _start_fine(request, inpainter, judge)
        else:
            start_inpainter(inpainter, rows, landmarks, PortraitNetworks.load())
    for parameter in inpainter.drawing():
        parameter.requires_grad_(False)
    for module in (inpainter, judge, *vars(teachers).values()):
        module.to(request.device)
    objective = InpainterObjective(inpainter, judge, teachers, request.folder / PORTRAITS, batch, device=request.device)
    return objective, replace(request.settings(name, steps, rate), betas=(0.5, 0.99))


def _start_fine(request: Request, inpainter: Inpainter, judge: FeatureDiscriminator) -> None:
    """Begin with the run's networks for half the side."""
    file = request.folder / "inpainter" / "state.pt"
    if not file.is_file():
        raise WeightsError(f"there is no {file}", "run `anonface train inpainter` there first")
    modules, smaller = torch.load(file, map_location="cpu", weights_only=True)["modules"], Inpainter()
    smaller.load_state_dict(modules["average"])
    inpainter.start_larger_from(smaller, load_generator())
    judge.load_state_dict(modules["discriminator"])


def _autoencoder(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    batch, steps = _pace("autoencoder", request.device)
    features = _features().to(request.device)
    model, pool, slow = _own_model(request.device), _pool(request, batch), request.device == "cpu"
    start_from_block_means(model.autoencoder)
    objective = AutoencoderObjective(
        model, features, pool, batch, crop=128 if slow else 0, repeat_every=4 if slow else 1
    )
    return objective, request.settings("autoencoder", steps, 4e-4)


def _diffusion(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    batch, steps = _pace("diffusion", request.device)
    model, name = _own_model(request.device), "diffusion-autoencoder"
    here = request.folder / "autoencoder" / f"{name}.safetensors"
    state = weights.load_checkpoint(here) if here.is_file() else weights.tensors(name)
    weights.fit(model.autoencoder, state, source=name)
    faces = _pool(request, batch)
    if request.device == "cpu":
        faces.fresh = 0  # new faces would take a quarter of every step
    return NoiseObjective(model, faces, batch), request.settings("diffusion", steps, 3e-4)


def _sharpener(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    batch, steps = _pace("sharpener", request.device)
    files = run_files(request.folder)
    model = load_model(str(request.folder) if files else "").to(request.device)
    pool = DetailPool(model, load_generator(request.device), load_mapping(request.device), request.faces)
    judges = _features().to(request.device), Discriminator().to(request.device)
    objective = SharpenerObjective(model, Sharpener().to(request.device), *judges, pool, batch)
    return objective, request.settings("sharpener", steps, 4e-4)


def _reader(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    return ReaderObjective(LatentReader(), _read_bank(request, progress)), request.settings("reader", 400, 1e-3)


def _read_bank(request: Request, progress: Progress) -> ReadBank:
    identity = IdentityEncoder()
    weights.load(identity, "identity")
    coordinates, mapping = InversionEncoder(), load_mapping()
    principal_latents(coordinates, mapping)
    file = request.folder / "read.safetensors"
    analysis = identity.requires_grad_(False).eval(), _landmark_network()
    return load_read_bank(file, load_generator(), mapping, coordinates, *analysis, request.faces, progress=progress)


def _inversion(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
    batch, steps = _pace(ENCODER, request.device)
    generator, mapping = load_generator(request.device), load_mapping(request.device)
    encoder = InversionEncoder().to(request.device)
    _start_from_imagenet(encoder.backbone)
    principal_latents(encoder, mapping)
    drawn = InversionObjective(encoder, generator, mapping, _teachers(request.device), batch)
    reader, bank = _trained_reader(request, progress)
    both = Then(ReadInversion(encoder, reader, bank, 4 * batch), drawn, READER_STEPS[ENCODER])
    return both, request.settings(ENCODER, steps, 4e-4)


def _editing(what: str) -> Callable[[Request, Progress], tuple[Objective, LoopSettings]]:
    def recipe(request: Request, progress: Progress) -> tuple[Objective, LoopSettings]:
        batch, steps = _pace(what, request.device)
        settings = request.settings(what, steps, 1e-3)  # ten times the papers' rate, falling to theirs
        generator, mapping = load_generator(request.device), load_mapping(request.device)
        teachers = _teachers(request.device)
        objective = {"dbaf": DBAFObjective, "hford": HFORDObjective}[what](
            FaceEditor(_trained_encoder(request.folder), EDITORS[what](), generator).to(request.device),
            mapping,
            teachers,
            CoveredPool(generator, mapping, teachers.parser, request.faces, max(1, batch // 8)),
            Discriminator().to(request.device),
            first_stage=(RETENTION_STEPS[what] + settings.steps) // 2,
            batch=batch,
        )
        reader, bank = _trained_reader(request, progress)
        read = ReadEditing(objective, reader, bank, _encoded(objective, bank))
        fast = Then(read, RetentionObjective(objective), READER_STEPS[what])
        return Then(fast, objective, RETENTION_STEPS[what]), settings

    return recipe


def _trained_reader(request: Request, progress: Progress) -> tuple[LatentReader, ReadBank]:
    """The run's reader and its training faces, on the device."""
    reader, file = LatentReader(), request.folder / "reader" / "reader.safetensors"
    if not file.is_file():
        raise WeightsError(f"{request.folder} has no reader/{file.name}", "run `anonface train reader` there first")
    weights.fit(reader, weights.load_checkpoint(file), source=str(file))
    return reader.to(request.device), _read_bank(request, progress).to(request.device)


@torch.no_grad()
def _encoded(objective: EditingObjective, bank: ReadBank) -> Tensor:
    """The encoder's codes of a bank's faces."""
    every = torch.arange(len(bank.images))
    return torch.cat([objective.networks.encoder(bank.faces(some))[0] for some in every.split(16)])


def _trained_encoder(folder: Path) -> InversionEncoder:
    """The run's encoder, or else the package's."""
    encoder, file = InversionEncoder(), folder / ENCODER / f"{ENCODER}.safetensors"
    if file.is_file():
        weights.fit(encoder, weights.load_checkpoint(file), source=str(file))
    elif ENCODER in {entry.name for entry in weights.entries()}:
        weights.load(encoder, ENCODER)
    else:
        raise WeightsError(f"{folder} has no {file.relative_to(folder)}", f"run `anonface train {ENCODER}` there first")
    return encoder


def _teachers(device: str) -> Teachers:
    identity, parser = IdentityEncoder(), FaceParser()
    for module, name in ((identity, "identity"), (parser, "face-parser")):
        weights.load(module, name)
        module.requires_grad_(False).eval().to(device)
    return Teachers(identity, _features().to(device), parser)


def _pace(what: str, device: str) -> tuple[int, int]:
    return PACES[what][device != "cpu"]


def _own_model(device: str) -> LatentDiffusion:
    """The architecture trained here with random weights. Channels last makes bfloat16 convolutions twice as fast."""
    model = LatentDiffusion(build(OWN_UNET), build(OWN_AUTOENCODER), OWN_SCHEDULE).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave this form out
    return model


def _pool(request: Request, batch: int) -> FacePool:
    generator, mapping = load_generator(request.device), load_mapping(request.device)
    return FacePool(generator, mapping, request.faces, batch if request.device != "cpu" else 1)


def _bank(request: Request, progress: Progress) -> FaceBank:
    file = request.folder / "faces.safetensors"
    return load_bank(file, load_generator(), load_mapping(), request.faces, progress=progress)


def _fixed() -> Fixed:
    return Fixed(load_generator(), load_mapping(), _encoder(), _landmark_network(), _features())


def _encoder() -> IdentityEncoder:
    encoder = IdentityEncoder()
    weights.load(encoder, "identity")
    return encoder.requires_grad_(False).eval()


def _features() -> MobileNetV2Features:
    features = MobileNetV2Features()
    _start_from_imagenet(features)
    return features.requires_grad_(False).eval()


def _start_from_imagenet(features: MobileNetV2Features) -> None:
    used = features.state_dict()
    state = {k: v for k, v in weights.tensors("mobilenet-v2").items() if k in used}
    weights.fit(features, state, source="mobilenet-v2")


def _landmark_network() -> Graph:
    return Graph(weights.graph("landmarks")).eval()


RECIPES: dict[str, Callable[[Request, Progress], tuple[Objective, LoopSettings]]] = {
    "heads": _heads,
    "parser": _parser,
    "identity": _identity,
    "attributes": _attributes,  # phase I
    "flow": _flow,
    "ifadit": _phase_two,  # phase II
    "autoencoder": _autoencoder,
    "diffusion": _diffusion,
    "sharpener": _sharpener,
    "reader": _reader,
    "inversion": _inversion,
    "dbaf": _editing("dbaf"),
    "hford": _editing("hford"),
    "inpainter": _inpainter,
    "inpainter-fine": partial(_inpainter, name=FINE, rate=5e-4),
}
# Recipes that can run on a GPU: (faces per step, steps) on a CPU and on a GPU.
PACES = {
    "autoencoder": ((8, 5_000), (48, 40_000)),
    "diffusion": ((16, 8_000), (128, 100_000)),
    "sharpener": ((8, 1_800), (32, 40_000)),
    "inversion": ((4, 1_200), (32, 40_000)),
    "dbaf": ((4, 1_200), (16, 60_000)),
    "hford": ((4, 1_200), (16, 60_000)),
    "inpainter": ((8, 12_500), (64, 60_000)),
    "inpainter-fine": ((8, 75_000), (32, 60_000)),
}
ON_ONE_THREAD = {"flow"}  # so that files do not depend on the number of threads
FITTED = {
    CENSUS: _fit_latent_attributes,
    PORTRAITS: _draw_portraits,
    CODE_LANDMARKS: _fit_code_landmarks,
}  # without steps
READER_STEPS = {"inversion": 1_200, "dbaf": 600, "hford": 600}  # first steps, with losses through the reader
RETENTION_STEPS = {"dbaf": 1_200, "hford": 1_200}  # the step at which training of the maps alone ends
