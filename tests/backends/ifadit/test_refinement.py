"""The parts of refinement's losses, on made-up pictures."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anonface.backends.ifadit import refinement as refinement
from anonface.backends.ifadit.refinement import (
    EXPECTED_GAIN,
    EXPRESSIVE,
    GLASSES_WEIGHT,
    SEX,
    ChoiceParams,
    Networks,
    RefineParams,
    Scene,
    _above_brows,
    _contrast,
    _eyes_and_mouth,
    apparent,
    expression,
    in_mask,
    refine,
    refine_best,
)
from anonface.faces import analysis
from anonface.faces.align import BROWS
from anonface.faces.analysis import FaceAnalysis
from anonface.models.ethnicity import Ethnicity
from anonface.models.face_parser import CLASSES
from anonface.models.identity import CONDITIONS
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.realism_critic import RealismCritic


def test_expression_is_blind_to_where_eyes_and_mouth_lie_but_not_to_their_shape():
    mesh = torch.rand(1, 468, 2, generator=torch.Generator().manual_seed(3))
    moved, opened = mesh.clone(), mesh.clone()
    moved[:, list(EXPRESSIVE[0])] += 0.1
    opened[:, list(EXPRESSIVE[2])] *= 1.5
    assert torch.allclose(expression(moved), expression(mesh), atol=1e-6)
    assert (expression(opened) - expression(mesh)).abs().max() > 0.05


def eyes_and_mouth() -> torch.Tensor:
    """Landmarks with two eyes and a mouth, each a ring."""
    mesh = torch.full((1, 468, 2), 0.1)
    for rows, centre in zip(EXPRESSIVE, ((0.35, 0.4), (0.65, 0.4), (0.5, 0.7), (0.5, 0.7)), strict=True):
        angles = torch.linspace(0, 6.28, len(rows))
        mesh[0, list(rows)] = torch.tensor(centre) + 0.05 * torch.stack([angles.cos(), angles.sin()], 1)
    return mesh


def test_the_weights_lie_on_eyes_and_mouth():
    weights = _eyes_and_mouth(eyes_and_mouth())
    assert torch.allclose(weights.sum(), torch.ones(()))
    peak = divmod(int(weights.flatten().argmax()), 64)
    assert any(
        abs(peak[0] / 64 - y) < 0.03 and abs(peak[1] / 64 - x) < 0.03 for x, y in ((0.35, 0.4), (0.65, 0.4), (0.5, 0.7))
    )
    assert weights[0, 0, 5, 5] < 1e-6


def test_the_forehead_is_what_the_mask_covers_above_the_brows():
    mesh = torch.full((1, 468, 2), 0.7)
    mesh[:, BROWS] = torch.tensor([0.5, 0.45])
    mask = torch.zeros(1, 1, 256, 256)
    mask[:, :, 64:, 64:192] = 1  # from a quarter of the height down
    weights = _above_brows(mesh, mask)
    assert torch.allclose(weights.sum(), torch.ones(()))
    rows, columns = weights[0, 0].nonzero().T
    assert (rows.min(), rows.max()) == (16, 27) and (columns.min(), columns.max()) == (16, 47)
    assert _above_brows(mesh, mask * 0).sum() == 0


def test_contrast_sees_a_dark_spot_and_no_even_light():
    flat = torch.full((1, 3, 256, 256), 0.3)
    spot = F.pad(torch.full((1, 3, 16, 16), -0.5), (120, 120, 120, 120), value=0.3)
    assert _contrast(flat).abs().max() < 1e-6
    assert _contrast(spot)[0, 0, 31, 31] < -0.4


def test_what_is_not_face_counts_where_it_is_seen_alone():
    skin = torch.zeros(1, 32, 32)
    hair = skin.clone()
    hair[:, 8:16] = 9.0
    mask = torch.zeros(1, 1, 64, 64)
    mask[:, :, :40] = 1
    clean, worn, hidden = (
        float(in_mask(fault, seen, mask))
        for fault, seen in ((skin, mask), (hair, mask), (hair, mask.flip(2) * (1 - mask)))
    )
    assert clean < 0.01 and hidden < 0.01 < 1 < worn
    assert abs(worn - 9 * 8 / 20) < 0.1  # nine nats on eight of the twenty rows


def all_face(faces: torch.Tensor) -> torch.Tensor:
    """A parser that sees nothing but skin."""
    logits = torch.zeros(len(faces), len(CLASSES), 8, 8)
    logits[:, CLASSES.index("skin")] = 9
    return logits


class _Plain:
    """Stands for generator, mapper, encoder, landmarks and parser: a latent's first numbers are a picture's colours,
    the next are added in a small square."""

    def synthesize(self, w, side, window=None):
        square = F.pad(torch.ones(side // 8, side // 8), (side // 2, side * 3 // 8) * 2)
        return (w[:, 0, :3, None, None] + w[:, 0, 3:6, None, None] * square).tanh()

    def to_u(self, w):
        return w

    to_w = to_u

    def __call__(self, faces):
        return F.normalize(F.pad(faces.mean((2, 3)), (0, 445)) + 0.01, dim=1)


def plain_networks(parse) -> Networks:
    still = torch.rand(1, 468 * 3, generator=torch.Generator().manual_seed(4))
    plain = _Plain()
    return Networks(
        encoder=plain,
        landmarks=lambda view: still,
        parser=parse,
        recognizer=lambda faces, frames: plain(faces),
        apparent=lambda faces: torch.zeros(len(faces), 2),
        ethnicity=Ethnicity(),
        generator=plain,
        draft=plain.synthesize,
        mapper=plain,
        regressor=LatentAttributes(),
        inversion=InversionEncoder(),
        critic=RealismCritic(),
    )


def see(faces, frames=None):
    """A recognizer that knows pictures by their colours in 12 by 12 cells."""
    return F.normalize(F.adaptive_avg_pool2d(faces, 12).flatten(1), dim=1)


def read(faces):
    """An encoder that does."""
    return F.pad(see(faces), (0, 16))


# nobody is led anywhere, unless a test says whither
UNLED = dict.fromkeys(
    (
        "leave",
        "near",
        "parted",
        "identity",
        "near_embedding",
        "common",
        "own_embedding",
        "own_code",
        "conditions",
        "sex",
        "age",
    ),
    0.0,
)


def plain_scene(face, mask, networks, params) -> Scene:
    return Scene(FaceAnalysis(face, networks), mask, networks.generator.synthesize, params)


def test_teeth_in_a_closed_mouth_count_as_gaze_does_though_no_landmark_moves(monkeypatch):
    for module in (refinement, analysis):
        monkeypatch.setattr(module, "mesh_in_crop", lambda network, faces: eyes_and_mouth())
    nothing = RefineParams(colour=0, landmarks=800, expression=480, forehead=0, layout=0, hues=0)
    face, mask = torch.full((1, 3, 256, 256), 0.1), torch.ones(1, 1, 256, 256)
    teeth, as_bright = face.clone(), face + 0.2
    teeth[:, :, 175:183, 116:140] = 0.8  # as far below the eyes as the mouth is
    elsewhere = teeth.roll(-128, 2)

    def faults(**weights: float) -> list[float]:
        scene = plain_scene(face, mask, plain_networks(all_face), replace(nothing, **weights))
        return [float(scene.fit_error(shown, shown)) for shown in (face, as_bright, elsewhere, teeth)]

    same, brighter, far, seen = faults()
    assert same < 1e-4 and brighter < 1e-3  # the light of the whole is no gaze
    assert seen > 10 * far and seen > 1
    assert faults(gaze=0) == [0, 0, 0, 0]


@pytest.mark.parametrize("weight", ["landmarks", "expression"])
def test_what_a_choice_minds_beside_the_steps_is_added(monkeypatch, weight):
    for module in (refinement, analysis):
        monkeypatch.setattr(module, "mesh_in_crop", lambda network, faces: eyes_and_mouth())
    nothing = RefineParams(colour=0, landmarks=0, expression=0, gaze=0, forehead=0, layout=0, hues=0)
    zero = ChoiceParams(**{field.name: 0 for field in fields(ChoiceParams)})
    face, mask = torch.full((1, 3, 256, 256), 0.1), torch.ones(1, 1, 256, 256)
    scene = plain_scene(face, mask, plain_networks(all_face), replace(nothing, **{weight: 2.0}))
    bent = eyes_and_mouth() * torch.linspace(0.9, 1.1, 468)[:, None]
    monkeypatch.setattr(refinement, "mesh_in_crop", lambda network, faces: bent)
    alone, more = (float(scene.fit_error(face, face, choice)) for choice in (zero, replace(zero, **{weight: 4.0})))
    assert 0 < alone == float(scene.fit_error(face, face)) and more == pytest.approx(3 * alone)


def test_whoever_brings_what_is_no_face_or_looks_like_the_photo_is_not_chosen():
    def parse(faces):  # what is dark is hair
        logits = torch.full((len(faces), len(CLASSES), *faces.shape[-2:]), -9.0)
        logits[:, CLASSES.index("skin")] = 0
        logits[:, CLASSES.index("hair")] = torch.where(faces.amax(1) < -0.2, 9.0, -9.0)
        return logits

    def encode(faces):
        return F.normalize(F.pad(F.adaptive_avg_pool2d(faces, 12).flatten(1), (0, 16)), dim=1)

    networks = replace(plain_networks(parse), encoder=encode, recognizer=lambda faces, frames: encode(faces))
    candidates = [torch.zeros(1, 17, 512) for _ in range(3)]
    for w, square in zip(candidates, ([-0.9, -0.9, -0.9], [0.0, 0.0, 0.0], [0.9, -0.9, 0.0]), strict=True):
        w[0, 0, :3], w[0, 0, 3:6] = 0.2, torch.tensor(square)
    hues = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(5))
    face, mask = 0.4 * hues, torch.ones(1, 1, 64, 64)
    alike = [candidates[0], candidates[1].clone(), candidates[1]]
    nothing = RefineParams(colour=0, landmarks=0, expression=0, gaze=0, forehead=0, layout=0, hues=0)
    nothing = replace(nothing, occlusion_aware=False)

    def best(candidates=candidates, layout=0.0, hues=0.0, neutral=(), **weights) -> int:
        scene = plain_scene(face, mask, networks, replace(nothing, layout=layout, hues=hues))
        zero = {field.name: 0 for field in fields(ChoiceParams)}
        choice = ChoiceParams(**(zero | weights))
        return scene.rank(candidates, neutral, networks.encoder(face), networks.mapper, choice)[0]

    assert best(near=1) == 0  # whoever looks least like the photo
    assert best(near=1, face=1000) == 2  # of those without hair
    assert best(layout=1) == 1  # whose colours lie as the photo's do
    assert best(hues=1) == 0 and best(hues=-1) == 2  # grey is nearer to pale hues than strong ones are
    assert best(alike, unlike=1) == 0 and best(alike, unlike=-1) in (1, 2)  # the one unlike the two others
    scene = plain_scene(face, mask, networks, nothing)
    only_near = ChoiceParams(**({field.name: 0 for field in fields(ChoiceParams)} | {"near": 1}))
    order = scene.rank(candidates, (), networks.encoder(face), networks.mapper, only_near)
    alikes = [networks.encoder(scene.drawn(w)[1]) @ networks.encoder(face)[0] for w in candidates]
    assert order == sorted(range(3), key=alikes.__getitem__)  # whoever is too near, the nearer the more
    assert best(near=-1) == order[-1] != 0
    assert best(near=1, far=1) == best(near=-1, far=1) == 0  # all are far enough: the first
    assert best(near_embedding=1) == 0 and best(near_embedding=-1) != 0  # whom the recognizer knows best
    assert best(near_embedding=1, far_embedding=1) == best(near_embedding=-1, far_embedding=1) == 0
    far = [candidates[1].clone(), candidates[1], candidates[1] + F.pad(torch.ones(1, 7, 512), (0, 0, 3, 7))]
    far[0][0, 5] = -2
    assert best(far, odd=1) == 1 and best(far, odd=-1) == 2  # whose latents are the average's
    assert best(alike, unlike_embedding=1) == 0 and best(alike, unlike_embedding=-1) in (1, 2)
    three = [candidates[0], candidates[1], candidates[2]]
    for weight in ("unlike", "unlike_embedding"):  # nobody is alike to the last, whoever else is there
        named = {weight: 1.0}
        assert (
            best(three, neutral=[candidates[2]], **named) == 0
            and best(three[1:], neutral=[candidates[2]], **named) == 0
        )
        assert best(three, neutral=[candidates[2]], **{weight: -1.0}) == 2


def test_whoever_looks_least_like_a_photo_to_the_critic_is_not_chosen_and_steps_mend_him():
    networks = plain_networks(all_face)
    face, mask = torch.full((1, 3, 64, 64), 0.4), torch.ones(1, 1, 64, 64)
    taste = lambda faces, member: 10 * F.avg_pool2d(faces[:, 0], 4)  # noqa: E731  # who likes red
    nothing = RefineParams(colour=0, landmarks=0, expression=0, gaze=0, forehead=0, layout=0, hues=0)
    zero = {field.name: 0 for field in fields(ChoiceParams)}
    candidates = [torch.zeros(1, 17, 512) for _ in range(2)]
    candidates[0][0, 0, 3], candidates[1][0, 0, 3] = -0.9, 0.2

    def scene(params, critic) -> Scene:
        return Scene(FaceAnalysis(face, networks), mask, networks.generator.synthesize, params, critic)

    def best(critic, candidates=candidates, **weights: float) -> int:
        choice = ChoiceParams(**(zero | weights))
        return scene(nothing, critic).rank(candidates, (), networks.encoder(face), networks.mapper, choice)[0]

    assert best(taste, natural=1) == 1 and best(taste, natural=-1) == 0
    assert best(None, natural=1) == best(None, natural=-1) == 0
    odd = lambda faces, member: 10 * F.avg_pool2d((faces[:, 0] - 0.4).abs(), 4)  # noqa: E731  # who likes the photo least
    assert best(odd, candidates[::-1], natural=1) == 1 and best(odd, candidates[::-1], natural=-1) == 0
    liked = scene(nothing, lambda faces, member: 100 - 10 * F.avg_pool2d(faces[:, 0], 4))
    assert (
        float(liked.realism_loss(face)) == float(liked.realism_loss(face - 0.1)) == 0
    )  # as good as the photo is good enough
    params = replace(nothing, steps=3, face=0, natural=0, **UNLED)
    at_rest, led = (
        scene(one, taste).drawn(refine(candidates[1], torch.zeros(1, 448), scene(one, taste), networks.mapper))[0]
        for one in (params, replace(params, natural=1))
    )
    assert float(led[:, 0].mean()) > float(at_rest[:, 0].mean()) + 0.01


def test_steps_ask_the_critic_s_members_in_turn():
    networks, asked = plain_networks(all_face), []
    face, mask = torch.full((1, 3, 64, 64), 0.4), torch.ones(1, 1, 64, 64)

    def realism(faces, member):
        asked.append(member)
        return faces[:, 0] if member == 0 else -faces[:, 0]

    params = RefineParams(steps=8, natural=1, **UNLED)
    scene = Scene(FaceAnalysis(face, networks), mask, networks.generator.synthesize, params, realism)
    initial = len(asked)
    refine(torch.zeros(1, 17, 512), torch.zeros(1, 448), scene, networks.mapper)
    assert asked[initial:] == [0, 1, 0, 1]
    darker = face - 0.1
    assert float(scene.realism_loss(darker, 0)) == pytest.approx(0.1, abs=1e-5)
    assert float(scene.realism_loss(darker, 1)) == 0


def test_what_the_photo_keeps_is_neither_asked_nor_seen():
    def parse(faces):  # what is dark is hair
        logits = torch.full((len(faces), len(CLASSES), 32, 32), -9.0)
        logits[:, CLASSES.index("hair" if faces.mean() < 0 else "skin")] = 9
        return logits

    networks = plain_networks(parse)
    face, mask = torch.full((1, 3, 64, 64), 0.4), torch.ones(1, 1, 64, 64)
    seen, surprise, _ = plain_scene(face, mask, networks, RefineParams()).seen(-face)
    whole, more, _ = plain_scene(face, mask, networks, RefineParams(occlusion_aware=False)).seen(-face)
    assert torch.equal(whole, mask) and float(seen.mean()) < 0.95 and float(surprise) < float(more)
    hair = plain_scene(-face, mask, networks, RefineParams())
    assert torch.equal(hair.seen(-face)[0], mask) and float(hair.seen(face)[0].mean()) < 0.95


def test_whoever_wears_glasses_that_nobody_wore_is_not_chosen_and_steps_take_them_off():
    def parse(faces):  # what is darker than the photo may be glasses
        logits = torch.full((len(faces), len(CLASSES), *faces.shape[-2:]), -99.0)
        logits[:, CLASSES.index("skin")] = 0
        logits[:, CLASSES.index("glasses")] = 9 * (0.1 - faces[:, 0])
        return logits

    networks, mask = plain_networks(parse), torch.ones(1, 1, 64, 64)
    bare, candidates = torch.full((1, 3, 64, 64), 0.4), [torch.zeros(1, 17, 512) for _ in range(2)]
    candidates[0][0, 0, 3], candidates[1][0, 0, 3] = -0.9, 0.2
    nothing = RefineParams(steps=3, colour=0, landmarks=0, expression=0, gaze=0, forehead=0, layout=0, hues=0)
    nothing = replace(nothing, occlusion_aware=False, face=0, natural=0, **UNLED)
    zero = {field.name: 0 for field in fields(ChoiceParams)}

    def best(face, weight) -> int:
        choice = ChoiceParams(**(zero | {"glasses": weight}))
        scene = plain_scene(face, mask, networks, nothing)
        return scene.rank(candidates, (), networks.encoder(face), networks.mapper, choice)[0]

    assert best(bare, 1) == 1 and best(bare, -1) == 0
    assert best(-bare * 9, 1) == best(-bare * 9, -1) == 0  # whose photo wears them anyway: the first

    def worn(weight) -> float:
        """How much of glasses there is after steps."""
        scene = plain_scene(bare, mask, networks, replace(nothing, glasses=weight))
        w = refine(candidates[0], torch.zeros(1, 448), scene, networks.mapper)
        return float(scene.seen(scene.drawn(w)[1])[2])

    assert worn(30) < worn(0) - 0.001

    def told(photo) -> float:
        """How little the first is like a photo, to the verdict."""
        return plain_scene(photo, mask, networks, nothing).outcome(candidates[0])[1]

    scene = plain_scene(bare, mask, networks, nothing)
    assert (
        told(bare) == pytest.approx(GLASSES_WEIGHT * float(scene.seen(scene.drawn(candidates[0])[1])[2]))
        and told(bare) > 1
    )
    assert told(-bare * 9) == 0


def test_whose_hair_hangs_over_features_that_show_is_not_chosen():
    def parse(faces):  # what is dark is hair
        logits = torch.zeros(len(faces), len(CLASSES), *faces.shape[-2:])
        logits[:, CLASSES.index("skin")] = 40 * faces[:, 0]
        logits[:, CLASSES.index("hair")] = -40 * faces[:, 0]
        return logits

    networks, mask = plain_networks(parse), torch.ones(1, 1, 64, 64)
    bare, candidates = torch.full((1, 3, 64, 64), 0.4), [torch.full((1, 17, 512), 0.4) for _ in range(2)]
    candidates[0][0, 0, 3:6], candidates[1][0, 0, 3:6] = -0.9, 0.2
    choice = ChoiceParams(**({field.name: 0 for field in fields(ChoiceParams)} | {"fringe": 1}))

    def best(face, skin) -> int:
        scene = plain_scene(face, mask, networks, RefineParams())
        scene.skin = torch.full_like(scene.skin, skin)
        scene.fit_error = lambda *_: torch.zeros(())
        return scene.rank(candidates, (), networks.encoder(face), networks.mapper, choice)[0]

    assert best(bare, 0) == 1
    assert best(bare, 1) == 0  # over skin it gives way: the first
    assert best(-bare, 0) == 0  # in whose photo hair hangs there, too


def test_whoever_looks_of_another_sex_or_age_is_not_chosen():
    face, mask = torch.full((1, 3, 64, 64), 0.4), torch.ones(1, 1, 64, 64)
    zero = {field.name: 0 for field in fields(ChoiceParams)}
    nothing = RefineParams(colour=0, landmarks=0, expression=0, gaze=0, forehead=0, layout=0, hues=0)

    def best(*looks: tuple[float, float], photo: tuple[float, float] = (-3.0, 40.0), **weights: float) -> int:
        """Of people who look so, to the photo, of a woman of 40: a logit of sex, and years."""
        said = iter([*looks, photo])  # in the order in which it is asked
        networks = replace(
            plain_networks(all_face),
            encoder=lambda faces: F.normalize(F.pad(torch.ones(len(faces), 442), (6, 0)), dim=1),  # of neither sex
            apparent=lambda faces: torch.tensor([next(said) for _ in faces]),
        )
        scene, candidates = plain_scene(face, mask, networks, nothing), [torch.zeros(1, 17, 512)] * len(looks)
        return scene.rank(candidates, (), networks.encoder(face), networks.mapper, ChoiceParams(**(zero | weights)))[0]

    assert best((1, 40), (-1, 40), sex=1) == 1
    assert best((-3, 40), (-5, 40), sex=1) == best((-5, 40), (-3, 40), sex=1) == 0  # nobody doubts either
    assert best((-0.5, 40), (-2, 40), photo=(-0.2, 40.0), sex=1) == 1  # who leaves no doubt, though the photo does
    assert best((0.5, 40), (2, 40), photo=(0.2, 40.0), sex=1) == 1
    assert best((1, 49), (1, 31), (1, 43), age=1) == 2  # three years are none
    assert best((1, 37), (1, 20), (1, 43), age=1) == 0


def test_whoever_seems_to_be_from_farther_east_than_the_photo_is_not_chosen():
    face, mask = torch.full((1, 3, 64, 64), 0.4), torch.ones(1, 1, 64, 64)
    zero = {field.name: 0 for field in fields(ChoiceParams)}
    nothing = RefineParams(colour=0, landmarks=0, expression=0, gaze=0, forehead=0, layout=0, hues=0)

    def best(*seem: float, photo: float = -1.0, weight: float = 1.0) -> int:
        """Of people who seem so East Asian, in deviations."""

        def seen(codes: torch.Tensor) -> torch.Tensor:
            return torch.tensor([photo] if len(codes) == 1 else seem)

        networks = replace(plain_networks(all_face), ethnicity=seen)
        scene, candidates = plain_scene(face, mask, networks, nothing), [torch.zeros(1, 17, 512)] * len(seem)
        choice = ChoiceParams(**(zero | {"ethnicity": weight}))
        return scene.rank(candidates, (), networks.encoder(face), networks.mapper, choice)[0]

    assert best(2, 1) == 1 and best(2, 1, weight=-1) == 0
    assert best(-0.6, -3) == best(-0.6, -3, weight=-1) == 0  # near enough; and whoever seems so less
    assert best(2, 1, photo=2) == best(2, 1, photo=2, weight=-1) == 0  # as the photo does


def test_steps_make_somebody_of_the_photo_s_sex_and_age():
    networks, mask = plain_networks(all_face), torch.ones(1, 1, 64, 64)
    nothing = RefineParams(steps=9, colour=0, landmarks=0, expression=0, gaze=0, forehead=0, layout=0, hues=0)
    nothing = replace(nothing, occlusion_aware=False, face=0, glasses=0, natural=0, stay=0, **UNLED)
    lighter = torch.zeros(1, 17, 512)
    lighter[0, 0, 3:6] = 0.4

    def middle(faces) -> torch.Tensor:
        """How much lighter a face is in the middle."""
        return faces[:, :, 28:36, 28:36].mean((1, 2, 3)) - faces.mean((1, 2, 3))

    def moved(face, **weights: float) -> float:
        """By how much steps make lighter there what is as light as everywhere: who is, looks older and more male."""
        seen = replace(networks, apparent=lambda faces: torch.stack([9 * middle(faces), 40 + 99 * middle(faces)], 1))
        scene = plain_scene(face, mask, seen, replace(nothing, **weights))
        w = refine(torch.zeros(1, 17, 512), torch.zeros(1, 448), scene, networks.mapper)
        return float(middle(scene.drawn(w)[0]))

    man, woman = (networks.generator.synthesize(sign * lighter, 64) for sign in (1, -1))
    assert moved(man) == moved(woman) == 0
    assert moved(man, sex=1) > 0.02 and moved(woman, sex=1) < -0.02
    assert moved(man, age=1) > 0.02 and moved(woman, age=1) < -0.02


def test_who_is_chosen_does_not_depend_on_how_many_are_looked_at_at_once(monkeypatch):
    networks = replace(plain_networks(all_face), recognizer=see, encoder=read)
    face, mask = torch.full((1, 3, 64, 64), 0.2), torch.ones(1, 1, 64, 64)
    candidates = list(torch.randn(9, 1, 17, 512, generator=torch.Generator().manual_seed(5)))
    chosen, left = [], []
    for at_once in (1, 4, 9):
        monkeypatch.setattr("anonface.backends.ifadit.refinement.BATCH", at_once)
        scene = plain_scene(face, mask, networks, RefineParams())
        chosen.append(scene.rank(candidates[:8], candidates[8:], networks.encoder(face), networks.mapper))
        left.append(scene.left)
    assert chosen[0] == chosen[1] == chosen[2] != sorted(chosen[0]) == list(range(8))
    assert torch.allclose(left[0], left[1], atol=1e-6) and torch.allclose(left[0], left[2], atol=1e-6)


def test_the_next_one_takes_a_turn_where_a_face_comes_out_too_like_or_too_little_like_a_photo(monkeypatch):
    networks = plain_networks(all_face)
    face, mask = torch.full((1, 3, 64, 64), 0.2), torch.ones(1, 1, 64, 64)
    candidates = list(torch.randn(5, 1, 17, 512, generator=torch.Generator().manual_seed(5)))
    order, code = [3, 0, 4, 1, 2], networks.encoder(face)
    alone = RefineParams(steps=0, tries=3, enough=0.2, passable=4)

    def shown(*verdicts: tuple[float, float], hopes: dict[int, tuple[float, float]] | None = None, **how: float) -> int:
        """Who is shown where the first in order come out so like the original, and so little like a photo, and nothing
        is to be expected of them that is not among ``hopes``."""
        scene, told = plain_scene(face, mask, networks, replace(alone, **how)), iter(verdicts)
        monkeypatch.setattr(scene, "outcome", lambda w: next(told))
        monkeypatch.setattr(scene, "expected", lambda one: (hopes or {}).get(one, (-1.0, -9.0)))
        scene.rank(candidates, (), code, networks.mapper)
        w = refine_best(candidates, order, code, scene, networks.mapper)
        assert next(told, None) is None  # nobody is refined in vain
        return next(i for i, one in enumerate(candidates) if torch.equal(one, w))

    assert shown((0.1, 3)) == 3 and shown((0.3, 0), (0.1, 0)) == 0 and shown((0, 5), (0, 3)) == 0
    assert shown((0.5, 0), (0.3, 0), (0.4, 0)) == 0 and shown((0.5, 0), (0.4, 0), (0.3, 0)) == 4
    assert shown((0.1, 9), (0.1, 5), (0.1, 7)) == 0 and shown((0.4, 9), (0.4, 9), (0.4, 9)) == 3
    assert shown((0.3, 0), (0.1, 9), (0.1, 20)) == 0  # a tenth of the cosine is worth ten nats
    assert shown((0.5, 9), tries=1) == 3
    bent, alike = (0.0, 9.0), (0.3, 0.0)
    assert shown((0, 5), (0, 0), hopes={0: bent}) == 4 and shown((0, 5), hopes=dict.fromkeys(range(5), bent)) == 3
    assert shown((0, 5), (0, 0), hopes={0: alike, 4: alike}) == 1
    assert shown((0, 5), hopes={0: alike, 4: alike, 1: bent}) == 3  # the last in order fits too little


def test_what_is_to_be_expected_of_somebody_is_the_verdict_before_any_step_less_what_steps_gain():
    networks = plain_networks(all_face)
    face, mask = torch.full((1, 3, 64, 64), 0.2), torch.ones(1, 1, 64, 64)
    candidates = list(torch.randn(3, 1, 17, 512, generator=torch.Generator().manual_seed(5)))
    taste = lambda faces, member: 10 * F.avg_pool2d(faces[:, 0] - 0.2, 4).abs().neg()  # noqa: E731  # who likes the photo
    params = RefineParams()
    scene = Scene(FaceAnalysis(face, networks), mask, networks.generator.synthesize, params, taste)
    scene.rank(candidates, (), networks.encoder(face), networks.mapper)
    for i, w in enumerate(candidates):
        gained = np.subtract(scene.outcome(w), scene.expected(i))
        assert gained == pytest.approx(EXPECTED_GAIN, abs=1e-4)
    assert len({scene.expected(i) for i in range(3)}) == 3 and scene.initial[0][1] > 0


def test_a_verdict_is_of_a_face_as_it_will_be_seen():
    networks = plain_networks(all_face)
    face, mask = torch.full((1, 3, 64, 64), 0.2), torch.ones(1, 1, 64, 64)
    mask[..., 32:] = 0
    candidates = list(torch.randn(3, 1, 17, 512, generator=torch.Generator().manual_seed(5)))
    scene = plain_scene(face, mask, networks, RefineParams(occlusion_aware=False))
    shown = torch.cat([scene.drawn(candidates[0])[1][..., :32], face[..., 32:]], dim=3)
    alike = float(F.cosine_similarity(networks.encoder(shown), networks.encoder(face)))
    assert scene.outcome(candidates[0]) == pytest.approx((alike, float(scene.realism_loss(shown))), abs=1e-5)
    scene.rank(candidates, (), networks.encoder(face), networks.mapper)
    assert scene.outcome(candidates[0])[0] == pytest.approx(alike, abs=1e-5)  # whatever all share


def test_sex_counts_more_than_tone():
    code = torch.zeros(1, 448)
    other, darker = code.clone(), code.clone()
    other[:, CONDITIONS["sex"]] = 0.1
    darker[:, CONDITIONS["tone"]] = 0.1
    assert torch.allclose(apparent(other, code), SEX * apparent(darker, code))


def test_a_face_is_pulled_by_its_target_and_pushed_off_by_whom_a_recognizer_knows():
    networks = plain_networks(all_face)
    w, face, mask = torch.zeros(1, 17, 512), torch.full((1, 3, 64, 64), 0.2), torch.ones(1, 1, 64, 64)
    target = F.normalize(torch.cat([torch.tensor([[1.0, 0.0, -1.0]]), torch.zeros(1, 445)], 1), dim=1)
    alone = RefineParams(steps=3, **UNLED)
    led = lambda **how: refine(  # noqa: E731
        w, target, plain_scene(face, mask, networks, replace(alone, **how)), networks.mapper
    )
    idle = led()
    assert not torch.equal(led(identity=9), idle) and not torch.equal(led(near_embedding=9), idle)
    assert torch.equal(led(near_embedding=9, far_embedding=1), idle)  # who is a stranger is let be
    assert not torch.equal(led(near=9), idle) and torch.equal(led(near=9, far=1), idle)  # and who is far enough


def test_the_first_components_of_a_latent_alone_move():
    networks = plain_networks(all_face)
    w, face, mask = torch.zeros(1, 17, 512), torch.rand(1, 3, 64, 64), torch.ones(1, 1, 64, 64)
    scene = plain_scene(face, mask, networks, RefineParams(steps=2, components=2))
    moved = refine(w, torch.zeros(1, 448), scene, networks.mapper)
    assert (moved[..., :2] != 0).any() and not moved[..., 2:].any()


def test_a_chosen_face_stays_what_tells_it_from_the_others():
    networks = replace(plain_networks(all_face), recognizer=see, encoder=read)
    face, mask = torch.full((1, 3, 64, 64), 0.2), torch.ones(1, 1, 64, 64)
    candidates = [torch.zeros(1, 17, 512), torch.zeros(1, 17, 512)]
    candidates[0][0, 0, 3], candidates[1][0, 0, 4] = 0.5, 0.5
    alone = RefineParams(steps=5, rising=1, **UNLED)

    def own(**how) -> tuple[float, float]:
        """How much of the chosen one's own the recognizer sees in the end, and the code says."""
        scene = plain_scene(face, mask, networks, replace(alone, **how))
        chosen = scene.rank(candidates, (), networks.encoder(face), networks.mapper)[0]
        scene.choose(chosen)
        w = refine(candidates[chosen], networks.encoder(face), scene, networks.mapper)
        assert scene.own_embedding is not None and scene.own_code is not None
        shown = scene.drawn(w)[1]
        seen = F.cosine_similarity(networks.recognizer(shown, scene.analysis.frames), scene.own_embedding)
        return float(seen), float(F.cosine_similarity(read(shown), scene.own_code))

    idle = own()
    assert own(own_embedding=50)[0] > idle[0] + 0.01
    assert own(own_code=50)[1] > idle[1] + 0.01


def test_a_face_leaves_the_original_and_what_all_have_in_common_each_at_its_own_weight():
    networks = replace(plain_networks(all_face), recognizer=see, encoder=read)
    face, mask = torch.full((1, 3, 64, 64), 0.2), torch.ones(1, 1, 64, 64)
    candidates = [torch.zeros(1, 17, 512), torch.zeros(1, 17, 512)]
    candidates[0][0, 0, 3], candidates[1][0, 0, 4] = 0.5, 0.5
    nothing = dict.fromkeys(
        ("colour", "landmarks", "expression", "gaze", "forehead", "layout", "hues", "face", "stay"), 0
    )
    alone = RefineParams(steps=9, rising=1, **UNLED)
    alone = replace(alone, **nothing)

    def alike(**how) -> list[float]:
        """To the original and to all who were tried, in the recognizer's eyes and by codes, in the end."""
        scene = plain_scene(face, mask, networks, replace(alone, **how))
        chosen = scene.rank(candidates, (), networks.encoder(face), networks.mapper)[0]
        scene.choose(chosen)
        w = refine(candidates[chosen], networks.encoder(face), scene, networks.mapper)
        shown = scene.drawn(w)[1]
        seen = F.cosine_similarity(networks.recognizer(shown, scene.analysis.frames), scene.known)
        return [*seen.tolist(), *F.cosine_similarity(read(shown), scene.left).tolist()]

    idle, shunned, common = alike(), alike(near_embedding=50), alike(common=50)
    assert shunned[0] < idle[0] and common[1] < idle[1] and shunned != common
    assert alike(common=50, shared=1) == alike(near_embedding=50, far_embedding=1) == idle  # near enough is let be
    near, parted = alike(near=50), alike(parted=50)
    assert near[2] < idle[2] and parted[3] < idle[3] and near != parted
    assert alike(near=50, far=1) == alike(parted=50, far=1) == idle
