"""Latent refinement: a few gradient steps on the latents of one photo.

They close what the feed-forward networks leave open. The latents move until the *composited* face keeps the photo's
landmarks (pose, expression, gaze) and blurred colours (light, skin tone), and shows face wherever the mask is. To two
recognizers it leaves the original, and what target identities of other keys have in common. At recovery from an
illegible watermark it embeds to the original's code instead. Each face is optimised alone, so results do not depend on
the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.cpu import denormals_flushed
from anonface.faces.align import BROWS, EYES, LIPS
from anonface.faces.analysis import AnalysisNetworks, FaceAnalysis, mesh_in_crop
from anonface.faces.augmentation import augmented, luma, schedule, shrink
from anonface.faces.blend import composite
from anonface.faces.colour_transfer import match_tones
from anonface.faces.occlusion import skin_kept, skin_of
from anonface.models.attribute_encoder import LatentMapper, PrincipalLatents
from anonface.models.face_parser import like_odds, new_glasses, new_hair_odds
from anonface.models.identity import CONDITIONS, KEPT
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.mobile_stylegan import MobileStyleGAN, Window
from anonface.models.realism_critic import RealismCritic, within

Draft = Callable[[Tensor, int, Window], Tensor]

LAYOUT_GRID = 20  # cells along the side on which the face's layout is compared
HUE_GRID = 32  # and on which its hues are
ODD = 64  # whitened coordinates of a latent that count for its distance from the average
COARSE = 9  # latents that shape; those after them colour and texture
SHAPED = slice(3, 10)  # latents of features
SEX = 3.0  # how much more apparent sex counts than age and skin tone
CERTAIN = 3.0  # logit from which apparent sex is certain
AS_OLD = 5.0  # years by which two ages are the same
ETHNICITY_MARGIN = 0.5  # deviations of the reading up to which two faces seem of one ethnicity
ALIKE = 100.0  # nats of realism that a unit of cosine to the original above ``enough`` is worth
GLASSES_WEIGHT = 500.0  # and that a nat of new glasses all over the face is worth
EXPECTED_GAIN = (0.1, 5.0)  # of cosine to the original and of nats by refinement
LOOKAHEAD = 4  # candidates in the order among which the next one is looked for
BATCH = 4  # faces in one run of a network: on a CPU two thirds of the time of single ones
PARSER_EVERY = 2  # steps: the parser runs in one, the critic in the next; each costs half of what the generator does
SEX_AGE_EVERY = 4  # steps: the classifier costs as much as parser and critic together
INNER_LIPS = [78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308, 415, 310, 311, 312, 13, 82, 81, 80, 191]
EXPRESSIVE = (EYES[:16], EYES[16:], LIPS, INNER_LIPS)  # rows of the mesh: the rims of the eyes and of the mouth
GAZE_GRID = 64  # cells along the side on which eyes and mouth are compared


@dataclass(frozen=True)
class RefineParams:
    """Steps, Adam's rate in whitened latents, and the weight of each loss.

    Pace: all latents move together; those of features once more at ``shaped`` times that pace, each by itself at
    ``own`` times, and those of fine detail at ``fine`` times. So the face stays where the generator makes natural ones.
    Only the first ``components`` coordinates of each move: the others hardly show but deceive encoders. ``stay`` draws
    the latents back to their start.

    Identity: ``identity`` pulls the code towards the target. ``leave`` pushes it away from the original and from what
    all candidates share, as far as the target does. ``near`` (original) and ``parted`` (candidates) weigh the squared
    cosine above ``far``. In the recognizer's embedding, ``near_embedding`` weighs the cosine to the original above
    ``far_embedding``, and ``common`` that to what candidates share above ``shared``. ``own_embedding`` and ``own_code``
    keep what tells the chosen candidate from the others. The last four grow over the first ``rising`` steps.

    Conditions: ``conditions`` holds the code's kept coordinates (sex, age, skin tone), the first ``coded`` times as
    much. ``sex`` and ``age`` weigh the readings of a classifier.

    Fit: ``landmarks`` and ``colour`` keep these. ``expression`` compares the shapes of eyes and lips. ``gaze`` compares
    light and dark in and around eyes and mouth, ``forehead`` above the brows. ``layout`` compares colours on a coarse
    grid, ``hues`` on a finer one without lightness. ``face`` wants face wherever the mask is, to the parser; with
    ``occlusion_aware``, only where the render will be seen. ``glasses`` wants none where the photo has none.
    ``natural`` wants the critic to find the face as realistic as the photo.

    Tries: at most ``tries`` candidates are refined: a next one where the cosine to the original is above ``enough``, or
    where the realism is more than ``passable`` nats below the photo's.
    """

    steps: int = 20
    rate: float = 0.04
    own: float = 0.2
    shaped: float = 1.0
    fine: float = 0.5
    components: int = 64
    stay: float = 2.0
    identity: float = 0.0
    leave: float = 9.0
    near: float = 200.0
    parted: float = 200.0
    far: float = 0.15
    near_embedding: float = 20.0
    far_embedding: float = 0.0
    common: float = 20.0
    shared: float = 0.1
    own_embedding: float = 40.0
    own_code: float = 240.0
    rising: int = 4
    conditions: float = 60.0
    coded: float = 10.0
    sex: float = 5.0
    age: float = 40.0
    colour: float = 8.0
    landmarks: float = 800.0
    expression: float = 480.0
    gaze: float = 1000.0
    forehead: float = 10.0
    layout: float = 0.5
    hues: float = 1500.0
    face: float = 15.0
    glasses: float = 300.0
    natural: float = 6.0
    occlusion_aware: bool = True
    tries: int = 2
    enough: float = 0.25
    passable: float = 6.0


ANONYMIZE = RefineParams()
RECOVER = RefineParams(
    rate=0.05,
    own=0.7,
    shaped=0.0,
    components=512,
    stay=0.5,
    identity=2.5,
    leave=2,
    near=0,
    parted=0,
    near_embedding=0,
    common=0,
    own_embedding=0,
    own_code=0,
    conditions=10,
    coded=SEX,
    sex=0,
    age=0,
    colour=2.0,
    landmarks=80,
    expression=80,
    gaze=5,
    hues=0,
    face=1,
    glasses=0,
    natural=0,
    occlusion_aware=False,
)


@dataclass(frozen=True)
class ChoiceParams:
    """Weights of the choice among candidates, beside how well each fits the photo.

    They are larger than those of refinement, which cannot remove glasses or change an apparent sex without distortion.
    ``conditions``, ``landmarks``, ``expression``, ``face``, ``glasses`` and ``natural`` are as in RefineParams;
    ``fringe`` weighs hair over the photo's features, ``odd`` latents far from the average. ``near`` weighs the squared
    cosine to the original above ``far``. ``unlike`` weighs the cosine to a face without anybody's features: a candidate
    unlike it is also unlike those of other keys. ``near_embedding``, ``far_embedding`` and ``unlike_embedding`` are for
    the recognizer what ``near``, ``far`` and ``unlike`` are for the code. ``sex`` and ``age`` weigh the readings of a
    classifier. ``ethnicity`` weighs, squared, how much more East Asian than the photo a candidate seems: networks
    confuse such faces most.
    """

    near: float = 60000.0
    far: float = 0.15
    conditions: float = 500.0
    landmarks: float = 4000.0
    expression: float = 96000.0
    face: float = 2000.0
    glasses: float = 30000.0
    fringe: float = 10000.0
    natural: float = 200.0
    odd: float = 80.0
    unlike: float = 900.0
    near_embedding: float = 2000.0
    far_embedding: float = 0.05
    unlike_embedding: float = 2400.0
    sex: float = 200.0
    age: float = 1200.0
    ethnicity: float = 500.0


CHOICE = ChoiceParams()


@dataclass(frozen=True, kw_only=True)
class Networks(AnalysisNetworks):
    """The networks that analyse a face, and those that draw it.

    ``draft`` draws as the generator does, only faster (``generator.draft_renderer``). ``regressor`` predicts attributes
    of styles, ``inversion`` gives the photo's styles, and ``critic`` rates realism.
    """

    generator: MobileStyleGAN
    draft: Draft
    mapper: LatentMapper
    regressor: LatentAttributes
    inversion: InversionEncoder
    critic: RealismCritic

    def draw(self, u: Tensor, side: int, window: Window) -> Tensor:
        """Whitened latents [1, n, 512] -> their face [1, 3, side, side] in about [-1, 1], in a window."""
        return self.draft(self.mapper.to_w(u), side, window)


class Scene:
    """The photo's face that a new one must fit: what of it is kept, and the error of a render.

    Args:
        analysis: of the aligned photo, S px a side as renders will be; its landmarks and blurred colours are kept.
        mask: soft mask [1, 1, R, R] in 0..1, 1 where the render is seen.
        draw: latents [1, n, 512], a side and a window to a face [1, 3, side, side] in about [-1, 1], there.
        params: the weight of each error.
        critic: rates realism; may be left out.
    """

    @torch.no_grad()
    def __init__(
        self,
        analysis: FaceAnalysis,
        mask: Tensor,
        draw: Draft,
        params: RefineParams,
        critic: RealismCritic | None = None,
    ) -> None:
        self.analysis, self.networks, self.draw, self.params, self.critic = (
            analysis,
            analysis.networks,
            draw,
            params,
            critic,
        )
        self.face, self.side = analysis.face, analysis.face.shape[-1]
        self.mask = shrink(mask, self.side)
        self.window = Window.around(self.mask)
        self.rendered = self.window.within(torch.ones_like(self.window.of(self.mask)), self.side)
        self.mesh, self.cells = analysis.mesh, _cells(self.face, self.mask)
        self.shapes, self.contrast = expression(self.mesh), _contrast(self.face)
        self.hues = _hues(self.face, self.mask)
        self.where = params.gaze * _eyes_and_mouth(self.mesh) + params.forehead * _above_brows(self.mesh, self.mask)
        self.skin = skin_of(self.mesh, self.side)
        # of the photo itself, by each member of the critic
        self.levels = torch.stack([self.realism(self.face, member) for member in range(RealismCritic.MEMBERS)])
        # codes and embeddings that the new face must leave: at first the original's
        self.left, self.known = analysis.code, analysis.known
        # what tells the chosen candidate from the others, in codes and embeddings
        self.own_code: Tensor | None = None
        self.own_embedding: Tensor | None = None
        self.tried: tuple[Tensor, Tensor] = (
            self.left[:0],
            self.known[:0],
        )  # codes and embeddings of all ranked candidates
        self.initial: list[tuple[float, float]] = []  # their outcomes before refinement

    def drawn(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The render of latents [1, n, 512], as it is, and in the photo's colours over the photo, each [1, 3, side,
        side]; only within the mask's window."""
        render = self.draw(w, self.side, self.window)
        return render, composite(self.face, match_tones(render, self.face, self.mask), self.rendered)

    def fit_error(self, render: Tensor, toned: Tensor, choice: ChoiceParams | None = None) -> Tensor:
        """The weighted error of a render in colours, layout, landmarks, gaze and expression; a ``choice`` adds its
        weights of landmarks and expression."""
        params = self.params
        landmarks, shapes = params.landmarks, params.expression
        if choice:
            landmarks, shapes = landmarks + choice.landmarks, shapes + choice.expression
        loss = params.colour * ((toned - render) * self.mask).abs().mean() / self.mask.mean().clamp_min(0.05)
        loss = loss + params.layout * (_cells(toned, self.mask) - self.cells).square().mean()
        loss = loss + params.hues * (_hues(toned, self.mask) - self.hues).square().mean()
        found = mesh_in_crop(self.networks.landmarks, toned)
        loss = loss + landmarks * (found - self.mesh).abs().mean()
        loss = loss + (self.where * (_contrast(toned) - self.contrast).square()).sum()
        return loss + shapes * (expression(found) - self.shapes).abs().mean()

    def seen(self, toned: Tensor, parsed: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Where a render is seen, [1, 1, side, side], and in nats a pixel of the mask how unlike the photo's its parts
        there are, and how much more glasses it shows. ``parsed`` saves a run of the parser."""
        parsed = self.networks.parser(toned) if parsed is None else parsed
        odds, glasses = (fault(parsed, self.analysis.parsed) for fault in (like_odds, new_glasses))
        seen = (
            self.mask * (1 - skin_kept(odds, glasses, self.skin, self.mask))
            if self.params.occlusion_aware
            else self.mask
        )
        not_face, worn = (in_mask(fault, seen, self.mask) for fault in (F.softplus(-odds), glasses))
        return seen, not_face, worn

    def fringe(self, parsed: Tensor) -> Tensor:
        """How much hair hangs over the photo's features that is not in the photo, in nats a pixel of the mask."""
        hair = new_hair_odds(parsed, self.analysis.parsed).clamp_min(0)
        return in_mask(hair, self.mask * (1 - self.skin[:, 1:]), self.mask)

    def realism(self, shown: Tensor, member: int | None = None) -> Tensor:
        """Realism of faces in the photo, [B, 3, side, side], to the critic or one member of it, in nats: [B]; 0 without
        a critic."""
        return within(self.critic(shown, member), self.mask) if self.critic else shown.new_zeros(len(shown))

    def realism_loss(self, shown: Tensor, member: int | None = None) -> Tensor:
        """By how many nats a face is less realistic than the photo; at least 0."""
        level = self.levels.mean(0) if member is None else self.levels[member]
        return (level - self.realism(shown, member)).clamp_min(0).sum()

    @torch.no_grad()
    def rank(
        self,
        candidates: Sequence[Tensor],
        neutral: Sequence[Tensor],
        target: Tensor,
        latents: PrincipalLatents,
        choice: ChoiceParams = CHOICE,
    ) -> list[int]:
        """The order in which candidates, latents [1, n, 512] each, fit before any refinement.

        Args:
            neutral: the same without anybody's features; without these, candidates are compared with each other.
            target: the code [1, 448] whose kept coordinates they all should have.
            latents: their whitening.

        Candidates with hair or glasses in the mask, or far from the photo's landmarks, come late. From then on a face
        that is refined leaves what all candidates have in common as well.
        """
        networks, frames, count = self.networks, self.analysis.frames, len(candidates)
        renders, toned = zip(*(self.drawn(w) for w in (*candidates, *neutral)), strict=True)
        parsed = _in_batches(networks.parser, toned).split(1)
        seen, not_face, worn = zip(*map(self.seen, toned, parsed), strict=True)
        shown = [composite(self.face, *layers) for layers in zip(toned, seen, strict=True)]
        codes, embeddings = (
            _in_batches(networks.encoder, shown),
            _in_batches(lambda some: networks.recognizer(some, frames), shown),
        )
        seems, opinions = _in_batches(networks.apparent, shown[:count]), _in_batches(self.realism, shown[:count])
        elsewhere = (networks.ethnicity(codes) - networks.ethnicity(self.left) - ETHNICITY_MARGIN).clamp_min(0)
        scores, self.initial = [], []
        for i, w in enumerate(candidates):
            score = self.fit_error(renders[i], toned[i], choice) + choice.face * not_face[i] + choice.glasses * worn[i]
            score = score + choice.fringe * self.fringe(parsed[i]) - choice.natural * opinions[i]
            score = score + choice.conditions * apparent(codes[i : i + 1], target).sum()
            score = score + choice.odd * latents.to_u(w[:, SHAPED])[..., :ODD].square().mean()
            score = score + sex_age_error(seems[i], self.analysis.seems, choice)
            score = score + choice.ethnicity * elsewhere[i].square()
            alike, known = (
                F.cosine_similarity(*pair, dim=0) for pair in ((codes[i], self.left[0]), (embeddings[i], self.known[0]))
            )
            score = score + choice.near * (alike - choice.far).clamp_min(0).square()
            realism_loss = (self.levels.mean(0) - opinions[i]).clamp_min(0)
            self.initial.append((float(alike), float(realism_loss + GLASSES_WEIGHT * worn[i])))
            scores.append(score + choice.near_embedding * (known - choice.far_embedding).clamp_min(0).square())
        total = torch.stack(scores)
        for weight, each in ((choice.unlike, codes), (choice.unlike_embedding, embeddings)):
            every, plain = each.tensor_split([count])
            # of one alone nothing, to which the cosine is 0
            others = plain.sum(0, keepdim=True) if neutral else every.sum(0, keepdim=True) - every
            total = total + weight * F.cosine_similarity(every, others)
        codes, embeddings = codes[:count], embeddings[:count]
        self.left, self.known = (
            torch.cat([left[:1], F.normalize(every.mean(0, keepdim=True), dim=1)])
            for left, every in ((self.left, codes), (self.known, embeddings))
        )
        self.tried = codes, embeddings
        return total.argsort(stable=True).tolist()

    def choose(self, chosen: int) -> None:
        """Keep what tells one ranked candidate from the others."""
        if len(self.tried[0]) > 1:
            self.own_code, self.own_embedding = (
                F.normalize(every[chosen] - every.mean(0, keepdim=True), dim=1) for every in self.tried
            )

    @torch.no_grad()
    def outcome(self, w: Tensor) -> tuple[float, float]:
        """Of a face of latents [1, n, 512]: the cosine of its code to the original's, and the nats of realism that it
        lacks, new glasses included."""
        _, toned = self.drawn(w)
        seen, _, worn = self.seen(toned)
        placed = composite(self.face, toned, seen)
        alike = F.cosine_similarity(self.networks.encoder(placed), self.left[:1])
        return float(alike), float(self.realism_loss(placed) + GLASSES_WEIGHT * worn)

    def expected(self, chosen: int) -> tuple[float, float]:
        """The outcome to be expected of a ranked candidate once it is refined."""
        (alike, loss), (farther, more_real) = self.initial[chosen], EXPECTED_GAIN
        return alike - farther, loss - more_real


def refine_best(
    candidates: Sequence[Tensor], order: Sequence[int], target: Tensor, scene: Scene, latents: PrincipalLatents
) -> Tensor:
    """The first of ``candidates`` by their ``order``, refined (:func:`refine`).

    Where it is too like the original or too little realistic, a next one that promises better is refined as well, and
    the better one is returned.
    """
    enough, passable = scene.params.enough, scene.params.passable

    def fault(alike: float, realism_loss: float) -> float:
        return ALIKE * max(0.0, alike - enough) + max(0.0, realism_loss - passable)

    found: list[tuple[float, int, Tensor]] = []
    for place, chosen in enumerate(order[:LOOKAHEAD]):
        if found and fault(*scene.expected(chosen)) >= min(found)[0]:
            continue
        scene.choose(chosen)
        w = refine(candidates[chosen], target, scene, latents)
        found.append((fault(*scene.outcome(w)), place, w))
        if found[-1][0] == 0 or len(found) == scene.params.tries:
            break
    return min(found)[2]


@denormals_flushed()
def refine(w: Tensor, target: Tensor, scene: Scene, latents: PrincipalLatents) -> Tensor:
    """Move one face's latents towards its target code.

    Args:
        w: start, [1, n, 512].
        target: the target code [1, 448], 0 where it is unknown.
        scene: which the face has to fit.
        latents: their whitening.

    Returns:
        Latents [1, n, 512].
    """
    networks, params, left = scene.networks, scene.params, scene.left
    if params.steps == 0:
        return w
    allowed = (target * left).sum(1)
    embedding_weights = ((params.near_embedding, params.common), (params.far_embedding, params.shared))
    near_embedding, least = left.new_tensor(embedding_weights)[:, : len(left)]
    apart = left.new_tensor([params.near, params.parted])[: len(left)]
    start = latents.to_u(w).detach()
    latent = torch.arange(w.shape[1], device=w.device)
    pace = torch.where(latent < COARSE, 1.0, params.fine)[None, :, None]
    pace = pace * (torch.arange(start.shape[2], device=w.device) < params.components)
    shaping = ((latent >= SHAPED.start) & (latent < SHAPED.stop))[None, :, None] * params.shaped
    own = torch.zeros_like(start, requires_grad=True)
    shared, shape = (torch.zeros_like(start[:, :1], requires_grad=True) for _ in range(2))
    change = shared + shaping * shape + params.own * own
    optimiser = torch.optim.Adam([shared, own, shape], lr=params.rate, betas=(0.9, 0.95))
    for step in range(params.steps):
        optimiser.param_groups[0]["lr"] = params.rate * schedule(step / params.steps)
        render, toned = scene.drawn(latents.to_w(start + pace * change))
        loss, parsed = toned.new_zeros(()), step % PARSER_EVERY == 0
        if parsed:
            visible, not_face, worn = scene.seen(toned)
            loss = loss + PARSER_EVERY * (params.face * not_face + params.glasses * worn)
        placed = composite(scene.face, toned, visible)
        if params.natural and not parsed:
            member = step // PARSER_EVERY % RealismCritic.MEMBERS  # in turn: no dearer than one
            loss = loss + PARSER_EVERY * params.natural * scene.realism_loss(placed, member)
        shown = augmented(placed, step)
        code = networks.encoder(shown)
        loss = loss + params.identity * (1 - F.cosine_similarity(code, target)).mean()
        alike = F.cosine_similarity(code, left)
        loss = loss + params.leave * (alike - allowed).clamp_min(0).sum()
        loss = loss + (apart * (alike - params.far).clamp_min(0).square()).sum()
        rise = min(1.0, step / params.rising)
        if scene.own_code is not None:
            loss = loss + rise * params.own_code * (1 - F.cosine_similarity(code, scene.own_code)).sum()
        if params.near_embedding or params.common or params.own_embedding:
            seen = networks.recognizer(shown, scene.analysis.frames)
            known = F.cosine_similarity(seen, scene.known)
            loss = loss + rise * (near_embedding * (known - least).clamp_min(0)).sum()
            if scene.own_embedding is not None:
                loss = loss + rise * params.own_embedding * (1 - F.cosine_similarity(seen, scene.own_embedding)).sum()
        loss = loss + params.conditions * apparent(code, target, params.coded).mean()
        if (params.sex or params.age) and step % SEX_AGE_EVERY == 1:
            loss = loss + SEX_AGE_EVERY * sex_age_error(networks.apparent(shown)[0], scene.analysis.seems, params)
        loss = loss + scene.fit_error(render, toned)
        loss = loss + params.stay * change.square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        change = shared + shaping * shape + params.own * own
    return latents.to_w(start + pace * change.detach())


def _in_batches(network: Callable[[Tensor], Tensor], pictures: Sequence[Tensor]) -> Tensor:
    """A network's results for pictures [1, 3, side, side], [n, ...]."""
    return torch.cat([network(some) for some in torch.cat(list(pictures)).split(BATCH)])


def apparent(codes: Tensor, wanted: Tensor, sex: float = SEX) -> Tensor:
    """How far codes [B, 448] are from wanted ones in apparent sex, age and skin tone: [B], squared, sex weighed."""
    off = (codes - wanted)[:, :KEPT].square()
    return off.sum(1) + (sex - 1) * off[:, CONDITIONS["sex"]].sum(1)


def sex_age_error(seems: Tensor, photo: Tensor, params: RefineParams | ChoiceParams) -> Tensor:
    """The weighted error of apparent sex and age, both given as the logit of "male" and years, [2].

    Sex counts up to a certain logit, age beyond a tolerance.
    """
    (sex, age), (wanted, years) = seems, photo
    doubt = (CERTAIN - torch.where(wanted > 0, sex, -sex)).clamp_min(0)
    return params.sex * doubt.square() + params.age * (((age - years).abs() - AS_OLD).clamp_min(0) / 10).square()


def expression(mesh: Tensor) -> Tensor:
    """Landmarks [B, 468, 2] -> those of eyes and lips, [B, n, 2], each about its own middle."""
    parts = [mesh[:, rows] for rows in EXPRESSIVE]
    return torch.cat([part - part.mean(1, keepdim=True) for part in parts], dim=1)


def _eyes_and_mouth(mesh: Tensor) -> Tensor:
    """Weights [B, 1, 64, 64] of sum 1 around the eyes and the mouth of landmarks [B, 468, 2]."""
    cells = (torch.arange(GAZE_GRID, dtype=mesh.dtype, device=mesh.device) + 0.5) / GAZE_GRID
    bells = []
    for rows in EXPRESSIVE[:3]:
        part = mesh[:, rows]
        x, y = part.mean(1)[:, :, None].unbind(1)
        reach = (part[..., 0].amax(1) - part[..., 0].amin(1))[:, None] * 0.4
        across, down = (torch.exp(-0.5 * ((cells - m) / r) ** 2) for m, r in ((x, reach), (y, reach * 0.7)))
        bells.append(down[:, :, None] * across[:, None])
    total = torch.stack(bells, 1).sum(1, keepdim=True)
    return total / total.sum((2, 3), keepdim=True)


def _above_brows(mesh: Tensor, mask: Tensor) -> Tensor:
    """Weights [B, 1, 64, 64] of sum 1 (less, where little of it is in the mask) on the forehead."""
    brows = mesh[:, BROWS, 1].amin(1)[:, None, None, None] - 0.5 / GAZE_GRID
    cells = (torch.arange(GAZE_GRID, dtype=mesh.dtype, device=mesh.device)[:, None] + 0.5) / GAZE_GRID
    forehead = F.adaptive_avg_pool2d(mask, GAZE_GRID) * (cells < brows)
    return forehead / forehead.sum((2, 3), keepdim=True).clamp_min(50.0)


def in_mask(fault: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
    """A fault of pixels, [1, h, w], summed where they are ``seen`` and divided by the mask's, each [1, 1, S, S]."""
    cover, whole = (F.adaptive_avg_pool2d(x, fault.shape[-1])[:, 0] for x in (seen, mask))
    return (fault * cover).sum() / whole.sum().clamp_min(1.0)


def _contrast(picture: Tensor) -> Tensor:
    """What is lighter or darker than its surroundings, [B, 1, 64, 64]."""
    cells = F.adaptive_avg_pool2d(luma(picture), GAZE_GRID)
    return cells - F.avg_pool2d(cells, 9, 1, 4, count_include_pad=False)


def _cells(picture: Tensor, mask: Tensor) -> Tensor:
    """Colours on the layout grid, where the mask is, in units of the mask's share of the crop."""
    return F.adaptive_avg_pool2d(picture * mask, LAYOUT_GRID) / mask.mean().clamp_min(0.05)


def _hues(picture: Tensor, mask: Tensor) -> Tensor:
    """What of the colours is not lightness, where the mask is, in units of the root of the mask's share of the crop."""
    return F.adaptive_avg_pool2d((picture - luma(picture)) * mask, HUE_GRID) / mask.mean().clamp_min(0.05).sqrt()
