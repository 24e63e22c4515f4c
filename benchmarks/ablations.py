"""Ablations: what each part of a recipe contributes. Each variant is trained without it and evaluated on real photos.

python benchmarks/ablations.py RUN PHOTOS --of hford [--steps 600] [--split even] [--limit 11] [--keys 3]

Each variant is trained in RUN/ablations; an interrupted training is resumed.

`dbaf` and `hford` need a RUN with a trained `reader`, and use its `inversion`, or else the package's encoder. Only the
papers' systems are evaluated: there is no search for a target identity and no watermark, and recovery encodes the
anonymized photo again.

`ifadit` continues the training of the shipped flow through renders (phase II). It is evaluated in the same way: M
renders the hidden code, and recovery uses C and the inverse flow. RUN holds its faces.

`flow` is evaluated on the identity codes of the photos. The error of a re-embedded hidden code is simulated by the
difference between two photos of a person, so PHOTOS needs identities.csv. A split needs it, too.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface import weights
from anonface.backends.generator import load_mapping
from anonface.backends.ifadit.backend import IFADIT
from anonface.backends.latent_editing.backend import EDITORS, LatentEditingBackend
from anonface.crypto.keys import FaceKey
from anonface.evaluation.judges import Judges, Original, look_at_originals, of_split, photos_of
from anonface.evaluation.measurements import ANONYMIZED, LANDMARKS, RANDOM, RIGHT, TWO_KEYS, in_the_face
from anonface.evaluation.run import evaluate
from anonface.evaluation.trials import Plan
from anonface.faces.augmentation import shrink
from anonface.models.attribute_encoder import IdentityCompensation
from anonface.models.identity import IdentityEncoder
from anonface.models.latent_editing import INITIAL_SCALE, FaceEditor
from anonface.pipeline import Engine
from anonface.training.data import draw_keys
from anonface.training.ifadit import FlowWarmUp, PhaseTwo
from anonface.training.latent_reader import ReadEditing
from anonface.training.loop import LoopSettings, Objective, Then, train
from anonface.training.run import RECIPES, Request

CONTRAST = frozenset({"contrast"})  # the disentangling loss (DBAF 10, HFORD 6)
DISENTANGLING = CONTRAST | {"mesh", "tones", "regular", "within"}  # stage one's (DBAF 18, HFORD III-F)
WIDTH = 512


@dataclass(frozen=True)
class Variant:
    """An ablation of a recipe.

    Attributes:
        title: of its row.
        without: names of losses that are left out.
        prepare: changes a fresh objective.
        staged: whether the first half of the steps only disentangles, and the second half does not.
    """

    title: str
    without: Collection[str] = ()
    prepare: Callable[[Objective], None] = lambda objective: None
    staged: bool = False


class Partial(Objective):
    """A recipe's objective without some of its losses."""

    def __init__(self, whole: Objective, variant: Variant, steps: int) -> None:
        self.whole, self.variant, self.steps = whole, variant, steps

    def modules(self) -> dict[str, nn.Module]:
        return self.whole.modules()

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return self.whole.deployable()

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        losses = self.whole.losses(rng, step)
        left_out = set(self.variant.without)
        if self.variant.staged:
            left_out |= set(losses) - DISENTANGLING if step < self.steps // 2 else CONTRAST
        return {f"_{name}" if name in left_out else name: value for name, value in losses.items()}


class Family(ABC):
    """A recipe with its variants and its evaluation."""

    columns: tuple[str, ...]
    variants: tuple[Variant, ...]
    settings: LoopSettings

    @abstractmethod
    def fresh(self, variant: Variant) -> Objective:
        """The variant's untrained objective."""

    @abstractmethod
    def cells(self, objective: Objective) -> list[str]:
        """The results of its networks on the photos, one text per column."""


@dataclass(frozen=True)
class PhotoEvaluation:
    """Evaluation of a system on photos."""

    photos: Path
    split: str
    limit: int
    keys: int
    judges: Judges
    originals: list[Original]

    columns: ClassVar[tuple[str, ...]] = (
        "original", "two keys", "right key", "wrong key", "PSNR hidden / right", "landmarks", "sex kept"
    )  # fmt: skip

    def cells(self, engine: Engine) -> list[str]:
        plan = Plan(keys=self.keys, recover_keys=1)
        some = {"split": self.split, "limit": self.limit, "judges": self.judges, "originals": self.originals}
        report = evaluate(engine, self.photos, plan, **some)  # type: ignore[arg-type]  # argparse knows the splits
        values = {measure: [value for _, _, value in rows] for measure, rows in report.samples.items()}

        def mean(measure: str) -> float:
            """NaN if no face was found in any result."""
            found = [v for v in values[measure] if v == v]
            return statistics.fmean(found) if found else float("nan")

        matched = lambda measure: sum(v < 0.6 for v in values[measure]) / len(values[measure])  # noqa: E731
        sex = next(measure for measure in values if measure.startswith("apparent sex kept, by faceres"))
        return [
            *(f"{mean(measure):.3f} ({matched(measure):.0%})" for measure in (ANONYMIZED, TWO_KEYS, RIGHT)),
            f"{mean(RANDOM):.3f}",
            " / ".join(f"{mean(in_the_face('psnr', measure)):.1f}" for measure in (ANONYMIZED, RIGHT)),
            f"{mean(LANDMARKS):.2f}",
            f"{mean(sex):.0%}",
        ]


# --- DBAF and HFORD --------------------------------------------------------------------------------------------------


class FourLayers(nn.Module):
    """The replacement of CID or IDM in the papers' ablations: four layers for each code separately."""

    def __init__(self) -> None:
        super().__init__()
        last = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            last.weight.mul_(INITIAL_SCALE)  # as in the module that it replaces
        layers = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2))]
        self.layers = nn.Sequential(*layers, last)

    def forward(self, codes: Tensor) -> Tensor:
        return self.layers(codes)


def four_layers_disentangle(objective: Objective) -> None:
    assert isinstance(objective, ReadEditing)
    objective.editing.networks.editor.disentangler = FourLayers()


class Unmarked(LatentEditingBackend):
    """The backend without a watermark."""

    def write_watermark(
        self, shown: Tensor, face: Tensor, original: Tensor, mask: Tensor, key: FaceKey
    ) -> Tensor | None:
        return None


@dataclass
class Editing(Family):
    """``dbaf`` or ``hford``, trained through the reader."""

    name: str
    recipe: ReadEditing
    settings: LoopSettings
    evaluation: PhotoEvaluation
    columns = PhotoEvaluation.columns
    variants = (
        Variant("all of it"),
        Variant("two stages", staged=True),
        Variant("no contrast", without=CONTRAST),
        Variant("four layers disentangle", prepare=four_layers_disentangle),
        Variant("no adversary", without={"fooling", "catching"}),
        Variant("nobody cast", without={"cast", "person"}),
        Variant("no conditions", without={"conditions"}),
    )

    def fresh(self, variant: Variant) -> ReadEditing:
        torch.manual_seed(self.settings.seed)
        run, editing, old = copy.copy(self.recipe), copy.copy(self.recipe.editing), self.recipe.editing.networks
        editor = EDITORS[self.name]()
        editor.readings.copy_(old.editor.readings)
        editing.networks = FaceEditor(old.encoder, editor, old.generator)
        run.editing, run.discriminator = editing, copy.deepcopy(self.recipe.discriminator)
        variant.prepare(run)
        return run

    def cells(self, objective: Objective) -> list[str]:
        assert isinstance(objective, ReadEditing)
        engine = Engine(self.name, device="cpu")
        encoder = engine.backend.encoder  # type: ignore[attr-defined]  # the backend of this name has them
        engine.backend = Unmarked(self.name, objective.editing.networks, load_mapping(), encoder)
        return self.evaluation.cells(engine)


# --- iFADIT, through renders -----------------------------------------------------------------------------------------


class PaperIFADIT(IFADIT):
    """The paper's system alone: M renders the hidden code, and there is no watermark."""

    def _anonymized(self, face: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
        hidden, renderer = self.identity.hide(self.identity.embed(face), key), self.renderer
        return renderer.drawn(renderer.latents(shrink(face, renderer.resolution), hidden), face, mask)

    def write_watermark(
        self, shown: Tensor, face: Tensor, original: Tensor, mask: Tensor, key: FaceKey
    ) -> Tensor | None:
        return None


def phase_two(objective: Objective) -> PhaseTwo:
    assert isinstance(objective, PhaseTwo)
    return objective


def without_compensation(objective: Objective) -> None:
    run = phase_two(objective)
    run.trained, run.compensation = ("flow",), IdentityCompensation()  # a fresh one returns its input


def train_mapper_too(objective: Objective) -> None:
    run = phase_two(objective)
    run.trained = (*run.trained, "mapper")
    run.mapper.requires_grad_(True)


def without_degradation(objective: Objective) -> None:
    phase_two(objective).degrade = lambda faces, rng: faces


def without_augmentation(objective: Objective) -> None:
    phase_two(objective).augment = lambda faces, rng: faces


def one_recognizer(objective: Objective) -> None:
    run = phase_two(objective)
    encoder = run.fixed.encoder
    # a code's axes are an isometry of both trunks' embeddings, side by side; losses compare directions
    run.compared = lambda codes: (codes @ encoder.axes)[:, : encoder.params.width_a]


@dataclass
class Rendered(Family):
    """iFADIT's phase II, continued from the shipped flow."""

    recipe: PhaseTwo
    settings: LoopSettings
    evaluation: PhotoEvaluation
    columns = PhotoEvaluation.columns
    variants = (
        Variant("all of it"),
        Variant("no diversity", without={"diversity"}),
        Variant("no image loss", without={"image"}),
        Variant("no compensation", without={"compensation"}, prepare=without_compensation),
        Variant("one recognizer", prepare=one_recognizer),
        Variant("M learns along", prepare=train_mapper_too),
        Variant("nothing happens on the way", prepare=without_degradation),
        Variant("faces as drawn", prepare=without_augmentation),
    )

    def fresh(self, variant: Variant) -> PhaseTwo:
        torch.manual_seed(self.settings.seed)
        run = copy.copy(self.recipe)
        for name in ("flow", "compensation", "mapper"):
            setattr(run, name, copy.deepcopy(getattr(self.recipe, name)))
        variant.prepare(run)
        return run

    def cells(self, objective: Objective) -> list[str]:
        run, engine = phase_two(objective), Engine("ifadit", device="cpu")
        backend = PaperIFADIT()
        backend.identity.flow, backend.identity.compensation = copy.deepcopy(run.flow).double(), run.compensation
        backend.renderer.mapper = run.mapper
        engine.backend = backend
        return self.evaluation.cells(engine)


# --- The flow --------------------------------------------------------------------------------------------------------


def no_noise(objective: Objective) -> None:
    objective.NOISE = (0.0, 0.0)  # type: ignore[attr-defined]  # FlowWarmUp's


@dataclass
class Flow(Family):
    """iFADIT's flow and compensation, on codes."""

    recipe: FlowWarmUp
    settings: LoopSettings
    keys: int
    codes: Tensor  # [n, 448], of the photos
    pairs: list[tuple[int, int]] = field(default_factory=list)  # photos of one person
    columns = (
        "own code",
        "two keys",
        "two people",
        "right key",
        "right key, seen anew",
        "the same without C",
        "wrong key",
    )
    variants = (
        Variant("all of it"),
        Variant("no diversity", without={"diversity"}),
        Variant("no compensation", without={"compensation"}),
        Variant("no noise", prepare=no_noise),
        Variant("noise may grow", without={"steady"}),
        Variant("not near rest", without={"rest", "steady"}),
        Variant("energy anywhere", without={"spectrum", "faces"}),
    )

    def fresh(self, variant: Variant) -> FlowWarmUp:
        torch.manual_seed(self.settings.seed)
        run = copy.copy(self.recipe)
        run.flow, run.compensation = copy.deepcopy(self.recipe.flow), copy.deepcopy(self.recipe.compensation)
        variant.prepare(run)
        return run

    @torch.no_grad()
    def cells(self, objective: Objective) -> list[str]:
        assert isinstance(objective, FlowWarmUp)
        flow, compensation, rng = objective.flow, objective.compensation, torch.Generator().manual_seed(0)
        first, second = (torch.tensor(numbers) for numbers in zip(*self.pairs, strict=True))
        z, again = self.codes[first], self.codes[second]
        rows = []
        for _ in range(self.keys):
            key, other = (draw_keys(objective.mapping, len(z), rng, flow.params) for _ in range(2))
            hidden, seen = flow(z, key), self._seen(flow(z, key), z, again)
            same = key[torch.zeros(len(z), dtype=torch.long)]
            pairs = (
                (hidden, z),
                (hidden, flow(z, other)),
                (flow(z, same), flow(self.codes[second.roll(1)], same)),
                (flow.inverse(hidden, key), z),
                (flow.inverse(compensation(seen), key), z),
                (flow.inverse(seen, key), z),
                (flow.inverse(compensation(seen), other), z),
            )
            kept = flow.params.kept
            rows.append([float(F.cosine_similarity(a[:, kept:], b[:, kept:]).mean()) for a, b in pairs])
        return [f"{value:.3f}" for value in torch.tensor(rows).mean(0).tolist()]

    @staticmethod
    def _seen(hidden: Tensor, z: Tensor, again: Tensor) -> Tensor:
        """Hidden codes with the error between two photos of the person."""
        off = again - (again * z).sum(1, keepdim=True) * z
        off = off - (off * hidden).sum(1, keepdim=True) * hidden
        return F.normalize((again * z).sum(1, keepdim=True) * hidden + off, dim=1)


@torch.no_grad()
def codes_of(originals: list[Original]) -> tuple[Tensor, list[tuple[int, int]]]:
    """Identity codes of aligned faces, and pairs of consecutive photos of one person."""
    encoder = IdentityEncoder()
    weights.load(encoder, "identity")
    encoder.eval()
    seen = [original for original in originals if original.aligned]
    crops = [torch.from_numpy(one.aligned.crop).permute(2, 0, 1)[None] for one in seen if one.aligned]
    codes = torch.cat([F.normalize(encoder(crop.float() / 127.5 - 1), dim=1) for crop in crops])
    last: dict[str, int] = {}
    pairs = []
    for number, original in enumerate(seen):
        if original.identity in last:
            pairs.append((last[original.identity], number))
        last[original.identity] = number
    return codes, pairs


# --- The table -------------------------------------------------------------------------------------------------------


def learnt(family: Family, variant: Variant, folder: Path) -> Objective:
    """The variant's trained objective, with the weights of its fp16 snapshots."""
    objective = family.fresh(variant)
    settings = replace(family.settings, folder=folder / variant.title.replace(" ", "-"))
    partial = Partial(objective, variant, settings.steps)
    for values in train(partial, settings):
        if values["step"] % 100 == 0:
            print(f"  {variant.title}: step {values['step']:.0f}, {values['total']:.3f}", flush=True)
    for name in partial.deployable():
        file = settings.folder / f"{name}.safetensors"
        weights.fit(objective.modules()[name], weights.load_checkpoint(file), source=str(file))
    return objective


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--of", choices=("flow", "ifadit", *sorted(EDITORS)), default="hford")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--only", default="", help="titles of the rows to compute, separated by commas")
    parser.add_argument("--faces", type=int, default=3600, help="size of the run's bank")
    parser.add_argument("--split", default="even")
    parser.add_argument("--limit", type=int, default=11)
    parser.add_argument("--keys", type=int, default=3)
    args = parser.parse_args()
    request = Request(args.run, steps=args.steps, faces=args.faces)
    torch.manual_seed(request.seed)  # as the command does
    recipe, settings = RECIPES[args.of](request, lambda done, total: None)
    judges = Judges()
    originals = look_at_originals(args.photos, judges, only=of_split(photos_of(args.photos), args.split)[: args.limit])
    evaluation = PhotoEvaluation(args.photos, args.split, args.limit, args.keys, judges, originals)
    family: Family
    if isinstance(recipe, FlowWarmUp):
        family = Flow(recipe, settings, args.keys, *codes_of(originals))
    elif isinstance(recipe, PhaseTwo):
        family = Rendered(recipe, settings, evaluation)
    else:
        assert isinstance(recipe, Then) and isinstance(recipe.first, Then)
        read = recipe.first.first  # the training through the reader; later stages have no variants
        assert isinstance(read, ReadEditing)
        family = Editing(args.of, read, settings, evaluation)
    print(f"| {' | '.join((args.of, *family.columns))} |\n|{'---|' * (len(family.columns) + 1)}", flush=True)
    titles = ["no training", *(variant.title for variant in family.variants)]
    only = args.only.split(",") if args.only else titles
    if unknown := set(only).difference(titles):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(titles)}")
    if "no training" in only:
        print(f"| no training | {' | '.join(family.cells(family.fresh(Variant(''))))} |", flush=True)
    for variant in family.variants:
        if variant.title not in only:
            continue
        objective = learnt(family, variant, args.run / "ablations" / args.of)
        print(f"| {variant.title} | {' | '.join(family.cells(objective))} |", flush=True)


if __name__ == "__main__":
    main()
