"""Latent refinement: a few gradient steps on the latents of one photo.

What the feed-forward networks leave open is closed here: the latents move until the *composited* face, as it will
stand in the photo, keeps the photo's landmarks (pose, expression, gaze) and blurred colours (light, skin tone), is
face wherever the mask is, and in the eyes of two recognizers leaves the original and what other keys' people have in
common; or, where a photo is recovered whose watermark has suffered, embeds to the original's code. Each face is
optimised alone, so results do not depend on who shares a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.cpu import denormals_flushed
from anonface.faces.align import BROWS, EYES, LIPS
from anonface.faces.analysis import Eyes, Sight, mesh_in_crop
from anonface.faces.augmentation import look, luma, schedule, shrink
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

Draw = Callable[[Tensor, int, Window], Tensor]

LAYOUT_GRID = 20  # cells along the side on which the face's layout is compared
HUE_GRID = 32  # and on which its hues are
ODD = 64  # whitened coordinates of a latent by which it is told how far it is from the average
COARSE = 9  # latents that shape; those after them colour and texture
SHAPED = slice(3, 10)  # latents of features
SEX = 3.0  # how much more apparent sex counts than age and tone: what is between does not look like either
CERTAIN = 3.0  # logit of sex from which on nobody is taken for the other
AS_OLD = 5.0  # years by which two ages are the same
FROM_THERE = 0.5  # deviations of the reading by which two people seem to be from the same part of the world
ALIKE = 100.0  # nats of the critic's that a cosine to the original is worth, where it is more than enough
BARE = 500.0  # and a nat of glasses that nobody wore, on all of the face
GAINED = (0.1, 5.0)  # cosine to the original, and nats of the critic's, that steps take away
NEXT = 4  # in the order, among whom the one is looked for who has the next turn
AT_ONCE = 4  # people at whom a network looks: on a CPU in two thirds of the time of one after the other
SELDOM = 2  # the parser looks at one step, the critic at the next: each costs half of what the generator does
RARELY = 4  # a classifier of sex and age looks at one step in so many, and costs as much as both
INNER_LIPS = [78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308, 415, 310, 311, 312, 13, 82, 81, 80, 191]
EXPRESSIVE = (EYES[:16], EYES[16:], LIPS, INNER_LIPS)  # rows of the mesh: the rims of the eyes and of the mouth
GAZE_GRID = 64  # cells along the side on which eyes and mouth are compared


@dataclass(frozen=True)
class RefineParams:
    """Steps, Adam's rate in whitened latents, and the weight of each loss.

    ``own``, ``shaped`` and ``fine`` keep the face where the generator makes natural ones: the latents move together,
    those of features together once more at ``shaped`` times that pace, and each by itself only at ``own`` times; those
    of fine detail, which can fool an encoder but are nobody's features, at ``fine`` times the pace of the others.
    Only the first ``components`` coordinates of each move: what lies in the others hardly shows, but deceives encoders.
    ``stay`` draws them back to where they started.

    ``identity`` pulls towards the target; nobody is pulled who was drawn as the target already, because more would only
    bend a natural face. ``leave`` pushes away from whom the photo shows and from what all who were tried have in common
    in it, hence another key's person too, as far as the target does, and ``near`` from the one and ``parted`` from the
    other, squared, until the cosine is no more than ``far``; in the eyes of the recognizer ``shunned`` does so from the
    one, until the cosine is that of a ``stranger``, and ``common`` from the other, until it is what may be ``shared``;
    ``itself`` holds there what tells the chosen one from the others, ``person`` does in the code. The last four grow
    over the first ``rising`` steps: a face fits first. ``conditions`` holds the code's kept coordinates, sex, age and
    skin tone, which weigh little in the cosine but much to the eye, the first ``coded`` times as much as the others;
    ``sex`` and ``age`` are what a classifier of these alone sees of the new face, as in the choice.
    ``expression`` compares the shapes of eyes and lips alone, wherever they lie: open eyes stay open, a smile a smile.
    ``gaze`` compares light and dark in and around eyes and mouth, where landmarks do not tell a lid from an iris, or
    lips from teeth; ``forehead`` does so above the brows. ``layout`` compares colours on a coarse grid, ``hues`` on a
    finer one what of them is not lightness: no patches where skin was. ``face`` wants face wherever the mask is, as the
    parser sees it: no glasses, hair or background where the photo shows none; where a face is ``mended``
    (``mending.py``), only there where it will be seen; ``glasses`` wants none where the photo has none. ``natural``
    wants it to look as much like a photo as the photo does, to the critic. Of people who were ranked, ``turns`` at most
    are refined: a next one where the cosine to the original is still above ``enough``, or where the face looks like a
    photo by more than ``passable`` nats less than the photo does, glasses that nobody wore among them.
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
    shunned: float = 20.0
    stranger: float = 0.0
    common: float = 20.0
    shared: float = 0.1
    itself: float = 40.0
    person: float = 240.0
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
    mended: bool = True
    turns: int = 2
    enough: float = 0.25
    passable: float = 6.0


DISGUISE = RefineParams()
RESTORE = RefineParams(
    rate=0.05,
    own=0.7,
    shaped=0.0,
    components=512,
    stay=0.5,
    identity=2.5,
    leave=2,
    near=0,
    parted=0,
    shunned=0,
    common=0,
    itself=0,
    person=0,
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
    mended=False,
)


@dataclass(frozen=True)
class ChoiceParams:
    """What counts, beside how well somebody fits the photo, when one of several people is chosen.

    More than in steps, which cannot take off glasses or make a man a woman without bending the face: how far off in its
    ``conditions``, ``landmarks`` and ``expression`` the face is, where it is no ``face``, where it wears ``glasses``
    and where a ``fringe`` hangs over its features: who stands out often does. ``near`` counts, squared, what of the
    cosine to the original is above ``far``: who is far enough need not be farther still, who is not is hardly ever
    chosen. Steps change little of that, and who is far from the original is far from another key's people too.
    ``unlike`` nobody, a face of the same pose without anybody's features: who is least like it is least like these as
    well. All of one key lie out the same way; to be unlike each other would lead them back. ``seen`` and ``apart`` are
    to the recognizer what ``near`` and ``unlike`` are to the encoder, ``stranger`` what ``far`` is. ``sex`` and ``age``
    are what a classifier of these alone sees: it knows a beard, which the code hardly says. ``ethnicity`` counts,
    squared, who seems East Asian by more than the photo does; who seems so less is let pass, for such a photo has few
    people whom networks tell apart.
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
    seen: float = 2000.0
    stranger: float = 0.05
    apart: float = 2400.0
    sex: float = 200.0
    age: float = 1200.0
    ethnicity: float = 500.0


CHOICE = ChoiceParams()


@dataclass(frozen=True, kw_only=True)
class Networks(Eyes):
    """Those, and the networks that draw it; the census knows whom, the inversion what stays of the photo, and the
    critic whether it looks like one. ``sketch`` draws as the generator does, only faster (``generator.sketching``)."""

    generator: MobileStyleGAN
    sketch: Draw
    mapper: LatentMapper
    census: LatentAttributes
    inversion: InversionEncoder
    critic: RealismCritic

    def draw(self, u: Tensor, side: int, window: Window) -> Tensor:
        """Whitened latents [1, n, 512] -> their face [1, 3, side, side] in about [-1, 1], in a window."""
        return self.sketch(self.mapper.to_w(u), side, window)


class Scene:
    """One photo's face as a new one must fit it: what of it is kept, and how far a render is from that.

    Args:
        sight: the aligned photo, S px a side as renders will be; its landmarks and blurred colours are kept.
        mask: soft mask [1, 1, R, R] in 0..1, 1 where the render will be seen.
        draw: latents [1, n, 512], a side and a window to a face [1, 3, side, side] in about [-1, 1], there.
        params: how much each fault counts.
        critic: who tells how natural a face is; without one it is not asked.
    """

    @torch.no_grad()
    def __init__(
        self, sight: Sight, mask: Tensor, draw: Draw, params: RefineParams, critic: RealismCritic | None = None
    ) -> None:
        self.sight, self.eyes, self.draw, self.params, self.critic = sight, sight.eyes, draw, params, critic
        self.face, self.side = sight.face, sight.face.shape[-1]
        self.mask = shrink(mask, self.side)
        self.window = Window.around(self.mask)
        self.rendered = self.window.within(torch.ones_like(self.window.of(self.mask)), self.side)
        self.mesh, self.cells = sight.mesh, _cells(self.face, self.mask)
        self.shapes, self.contrast = expression(self.mesh), _contrast(self.face)
        self.hues = _hues(self.face, self.mask)
        self.where = params.gaze * _eyes_and_mouth(self.mesh) + params.forehead * _above_brows(self.mesh, self.mask)
        self.skin = skin_of(self.mesh, self.side)
        # of the photo itself, by each member of the critic
        self.levels = torch.stack([self.opinion(self.face, member) for member in range(RealismCritic.MEMBERS)])
        # whom the new face shall not resemble, by their codes and in the recognizer's eyes: the original
        self.left, self.known = sight.code, sight.known
        # what of a chosen one is nobody else's, by codes and in the recognizer's eyes
        self.person: Tensor | None = None
        self.itself: Tensor | None = None
        self.tried: tuple[Tensor, Tensor] = (self.left[:0], self.known[:0])  # all who were ranked, to both
        self.begun: list[tuple[float, float]] = []  # and, before any step, what is a verdict after them

    def drawn(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The render of latents [1, n, 512], as it is, and in the photo's colours before the photo, each [1, 3, side,
        side]; only where the mask lies within, to save what nobody will see."""
        render = self.draw(w, self.side, self.window)
        return render, composite(self.face, match_tones(render, self.face, self.mask), self.rendered)

    def misfit(self, render: Tensor, toned: Tensor, choice: ChoiceParams | None = None) -> Tensor:
        """How far a render is from the photo's colours, layout, landmarks, gaze and expression: a weighted sum, where
        landmarks and expression count more by as much as in a ``choice``."""
        params = self.params
        landmarks, shapes = params.landmarks, params.expression
        if choice:
            landmarks, shapes = landmarks + choice.landmarks, shapes + choice.expression
        loss = params.colour * ((toned - render) * self.mask).abs().mean() / self.mask.mean().clamp_min(0.05)
        loss = loss + params.layout * (_cells(toned, self.mask) - self.cells).square().mean()
        loss = loss + params.hues * (_hues(toned, self.mask) - self.hues).square().mean()
        found = mesh_in_crop(self.eyes.landmarks, toned)
        loss = loss + landmarks * (found - self.mesh).abs().mean()
        loss = loss + (self.where * (_contrast(toned) - self.contrast).square()).sum()
        return loss + shapes * (expression(found) - self.shapes).abs().mean()

    def seen(self, toned: Tensor, parsed: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Where a render will be seen, [1, 1, side, side], how unlike the photo's is what is seen there, as the parser
        tells kinds apart (``parsed``, unless it is still to be asked), and how much more glasses are, both in nats a
        pixel of the mask."""
        parsed = self.eyes.parser(toned) if parsed is None else parsed
        odds, glasses = (fault(parsed, self.sight.parsed) for fault in (like_odds, new_glasses))
        seen = self.mask * (1 - skin_kept(odds, glasses, self.skin, self.mask)) if self.params.mended else self.mask
        not_face, worn = (in_mask(fault, seen, self.mask) for fault in (F.softplus(-odds), glasses))
        return seen, not_face, worn

    def fringe(self, parsed: Tensor) -> Tensor:
        """How much hair hangs over the photo's features that is not in the photo, in nats a pixel of the mask."""
        hair = new_hair_odds(parsed, self.sight.parsed).clamp_min(0)
        return in_mask(hair, self.mask * (1 - self.skin[:, 1:]), self.mask)

    def opinion(self, shown: Tensor, member: int | None = None) -> Tensor:
        """How much like photos faces in it, [B, 3, side, side], look to the critic, or to one member of it, in nats:
        [B]; without one 0."""
        return within(self.critic(shown, member), self.mask) if self.critic else shown.new_zeros(len(shown))

    def artifice(self, shown: Tensor, member: int | None = None) -> Tensor:
        """By how much less than the photo a face in it looks like one; at least 0."""
        level = self.levels.mean(0) if member is None else self.levels[member]
        return (level - self.opinion(shown, member)).clamp_min(0).sum()

    @torch.no_grad()
    def ranked(
        self,
        people: Sequence[Tensor],
        nobody: Sequence[Tensor],
        target: Tensor,
        latents: PrincipalLatents,
        choice: ChoiceParams = CHOICE,
    ) -> list[int]:
        """Some people, latents [1, n, 512] each, in the order in which they fit before any refinement.

        Args:
            nobody: latents of the same kind without anybody's features; where there are none, each is compared with
                the others.
            target: the code [1, 448] whose kept coordinates they all should have.
            latents: which way they are whitened.

        Who would bring hair or glasses into the mask, or must be bent much, comes late so rather than corrected. From
        then on a face that is refined leaves what they all have in common as well.
        """
        eyes, frames, count = self.eyes, self.sight.frames, len(people)
        renders, toned = zip(*(self.drawn(w) for w in (*people, *nobody)), strict=True)
        parsed = _in_turn(eyes.parser, toned).split(1)
        seen, not_face, worn = zip(*map(self.seen, toned, parsed), strict=True)
        shown = [composite(self.face, *layers) for layers in zip(toned, seen, strict=True)]
        codes, looks = _in_turn(eyes.encoder, shown), _in_turn(lambda some: eyes.recognizer(some, frames), shown)
        seems, opinions = _in_turn(eyes.apparent, shown[:count]), _in_turn(self.opinion, shown[:count])
        elsewhere = (eyes.ethnicity(codes) - eyes.ethnicity(self.left) - FROM_THERE).clamp_min(0)
        scores, self.begun = [], []
        for i, w in enumerate(people):
            score = self.misfit(renders[i], toned[i], choice) + choice.face * not_face[i] + choice.glasses * worn[i]
            score = score + choice.fringe * self.fringe(parsed[i]) - choice.natural * opinions[i]
            score = score + choice.conditions * apparent(codes[i : i + 1], target).sum()
            score = score + choice.odd * latents.to_u(w[:, SHAPED])[..., :ODD].square().mean()
            score = score + otherwise(seems[i], self.sight.seems, choice)
            score = score + choice.ethnicity * elsewhere[i].square()
            alike, known = (
                F.cosine_similarity(*pair, dim=0) for pair in ((codes[i], self.left[0]), (looks[i], self.known[0]))
            )
            score = score + choice.near * (alike - choice.far).clamp_min(0).square()
            artifice = (self.levels.mean(0) - opinions[i]).clamp_min(0)
            self.begun.append((float(alike), float(artifice + BARE * worn[i])))
            scores.append(score + choice.seen * (known - choice.stranger).clamp_min(0).square())
        total = torch.stack(scores)
        for weight, each in ((choice.unlike, codes), (choice.apart, looks)):
            every, plain = each.tensor_split([count])
            # of one alone nothing, to which the cosine is 0
            others = plain.sum(0, keepdim=True) if nobody else every.sum(0, keepdim=True) - every
            total = total + weight * F.cosine_similarity(every, others)
        codes, looks = codes[:count], looks[:count]
        self.left, self.known = (
            torch.cat([left[:1], F.normalize(every.mean(0, keepdim=True), dim=1)])
            for left, every in ((self.left, codes), (self.known, looks))
        )
        self.tried = codes, looks
        return total.argsort(stable=True).tolist()

    def take(self, chosen: int) -> None:
        """Hold what tells one of those who were ranked from the others."""
        if len(self.tried[0]) > 1:
            self.person, self.itself = (
                F.normalize(every[chosen] - every.mean(0, keepdim=True), dim=1) for every in self.tried
            )

    @torch.no_grad()
    def verdict(self, w: Tensor) -> tuple[float, float]:
        """How like the original a face of latents [1, n, 512] comes out, the cosine of their codes, and by how many
        nats less like a photo, or like one without glasses where the photo shows none."""
        _, toned = self.drawn(w)
        seen, _, worn = self.seen(toned)
        placed = composite(self.face, toned, seen)
        alike = F.cosine_similarity(self.eyes.encoder(placed), self.left[:1])
        return float(alike), float(self.artifice(placed) + BARE * worn)

    def expected(self, chosen: int) -> tuple[float, float]:
        """What the verdict on one of those who were ranked will be, about, once they are refined."""
        (alike, artifice), (led, mended) = self.begun[chosen], GAINED
        return alike - led, artifice - mended


def refined(
    people: Sequence[Tensor], order: Sequence[int], target: Tensor, scene: Scene, latents: PrincipalLatents
) -> Tensor:
    """The first of ``people`` by their ``order``, refined (:func:`refine`); where that comes out too like the original
    or too little like a photo, the next one of whom less of either is to be expected, and of those the one of whom
    there is less."""
    enough, passable = scene.params.enough, scene.params.passable

    def fault(alike: float, artifice: float) -> float:
        return ALIKE * max(0.0, alike - enough) + max(0.0, artifice - passable)

    found: list[tuple[float, int, Tensor]] = []
    for place, chosen in enumerate(order[:NEXT]):
        if found and fault(*scene.expected(chosen)) >= min(found)[0]:
            continue
        scene.take(chosen)
        w = refine(people[chosen], target, scene, latents)
        found.append((fault(*scene.verdict(w)), place, w))
        if found[-1][0] == 0 or len(found) == scene.params.turns:
            break
    return min(found)[2]


@denormals_flushed()
def refine(w: Tensor, target: Tensor, scene: Scene, latents: PrincipalLatents) -> Tensor:
    """Move one face's latents towards its target code.

    Args:
        w: start, [1, n, 512].
        target: the code [1, 448] to be had, or what is known of it, with 0 for the rest.
        scene: into which the face has to fit.
        latents: which way they are whitened.

    Returns:
        Latents [1, n, 512].
    """
    eyes, params, left = scene.eyes, scene.params, scene.left
    if params.steps == 0:
        return w
    allowed = (target * left).sum(1)
    shunned, least = left.new_tensor([[params.shunned, params.common], [params.stranger, params.shared]])[
        :, : len(left)
    ]
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
        loss, parsed = toned.new_zeros(()), step % SELDOM == 0
        if parsed:
            visible, not_face, worn = scene.seen(toned)
            loss = loss + SELDOM * (params.face * not_face + params.glasses * worn)
        placed = composite(scene.face, toned, visible)
        if params.natural and not parsed:
            member = step // SELDOM % RealismCritic.MEMBERS  # in turn: no dearer than one
            loss = loss + SELDOM * params.natural * scene.artifice(placed, member)
        shown = look(placed, step)
        code = eyes.encoder(shown)
        loss = loss + params.identity * (1 - F.cosine_similarity(code, target)).mean()
        alike = F.cosine_similarity(code, left)
        loss = loss + params.leave * (alike - allowed).clamp_min(0).sum()
        loss = loss + (apart * (alike - params.far).clamp_min(0).square()).sum()
        rise = min(1.0, step / params.rising)
        if scene.person is not None:
            loss = loss + rise * params.person * (1 - F.cosine_similarity(code, scene.person)).sum()
        if params.shunned or params.common or params.itself:
            seen = eyes.recognizer(shown, scene.sight.frames)
            known = F.cosine_similarity(seen, scene.known)
            loss = loss + rise * (shunned * (known - least).clamp_min(0)).sum()
            if scene.itself is not None:
                loss = loss + rise * params.itself * (1 - F.cosine_similarity(seen, scene.itself)).sum()
        loss = loss + params.conditions * apparent(code, target, params.coded).mean()
        if (params.sex or params.age) and step % RARELY == 1:
            loss = loss + RARELY * otherwise(eyes.apparent(shown)[0], scene.sight.seems, params)
        loss = loss + scene.misfit(render, toned)
        loss = loss + params.stay * change.square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        change = shared + shaping * shape + params.own * own
    return latents.to_w(start + pace * change.detach())


def _in_turn(network: Callable[[Tensor], Tensor], pictures: Sequence[Tensor]) -> Tensor:
    """What a network says of pictures [1, 3, side, side], [n, ...]."""
    return torch.cat([network(some) for some in torch.cat(list(pictures)).split(AT_ONCE)])


def apparent(codes: Tensor, wanted: Tensor, sex: float = SEX) -> Tensor:
    """How far codes [B, 448] are from wanted ones in apparent sex, age and skin tone: [B], squared, sex weighed."""
    off = (codes - wanted)[:, :KEPT].square()
    return off.sum(1) + (sex - 1) * off[:, CONDITIONS["sex"]].sum(1)


def otherwise(seems: Tensor, photo: Tensor, params: RefineParams | ChoiceParams) -> Tensor:
    """How much less than surely somebody looks of the photo's sex, and how much older or younger than is tolerated;
    each told as the logit of "male" and years, [2]."""
    (sex, age), (wanted, years) = seems, photo
    # however little the photo shows of it: what is between does not look like either
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
