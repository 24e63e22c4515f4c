"""The parts of refinement's losses, on made-up pictures."""

from dataclasses import fields, replace

import torch
import torch.nn.functional as F

from anonface.backends.refine import (
    EXPRESSIVE,
    SEX,
    ChoiceParams,
    Networks,
    RefineParams,
    Scene,
    _above_brows,
    _contrast,
    _eyes_and_mouth,
    _not_face,
    apparent,
    expression,
    match_tones,
    refine,
)
from anonface.faces.align import BROWS
from anonface.models.census import Census
from anonface.models.face_parser import CLASSES
from anonface.models.identity import CONDITIONS
from anonface.models.inversion import InversionEncoder


def test_a_grey_photo_makes_its_face_grey_and_a_coloured_one_does_not():
    rng = torch.Generator().manual_seed(1)
    mask = torch.ones(1, 1, 64, 64)
    render = torch.rand(1, 3, 64, 64, generator=rng) - 0.5
    grey = (torch.rand(1, 1, 64, 64, generator=rng) - 0.5).expand(1, 3, 64, 64)
    hues = lambda picture: float((picture.amax(1) - picture.amin(1)).mean())  # noqa: E731
    assert hues(render) > 0.2 and hues(match_tones(render, grey, mask)) < 0.01
    coloured = torch.rand(1, 3, 64, 64, generator=rng) - 0.5
    assert hues(match_tones(render, coloured, mask)) > 0.2


def test_a_tint_is_kept():
    rng = torch.Generator().manual_seed(2)
    mask = torch.ones(1, 1, 64, 64)
    tint = torch.tensor([0.2, 0.0, -0.2])[None, :, None, None]
    sepia = (torch.rand(1, 1, 64, 64, generator=rng) - 0.5) + tint
    toned = match_tones(torch.rand(1, 3, 64, 64, generator=rng) - 0.5, sepia, mask)
    luma = (toned * toned.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    expected = (tint * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    assert torch.allclose((toned - luma).mean((2, 3)), (tint - expected).mean((2, 3)), atol=0.02)


def test_expression_is_blind_to_where_eyes_and_mouth_lie_but_not_to_their_shape():
    mesh = torch.rand(1, 468, 2, generator=torch.Generator().manual_seed(3))
    moved, opened = mesh.clone(), mesh.clone()
    moved[:, list(EXPRESSIVE[0])] += 0.1
    opened[:, list(EXPRESSIVE[2])] *= 1.5
    assert torch.allclose(expression(moved), expression(mesh), atol=1e-6)
    assert (expression(opened) - expression(mesh)).abs().max() > 0.05


def test_the_weights_lie_on_eyes_and_mouth():
    mesh = torch.full((1, 468, 2), 0.1)
    for rows, centre in zip(EXPRESSIVE, ((0.35, 0.4), (0.65, 0.4), (0.5, 0.7), (0.5, 0.7)), strict=True):
        angles = torch.linspace(0, 6.28, len(rows))
        mesh[0, list(rows)] = torch.tensor(centre) + 0.05 * torch.stack([angles.cos(), angles.sin()], 1)
    weights = _eyes_and_mouth(mesh)
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


def test_what_is_not_face_counts_within_the_mask_alone():
    nowhere = torch.zeros(1, len(CLASSES), 32, 32)
    nowhere[:, CLASSES.index("skin")] = 9.0
    glasses = nowhere.clone()
    glasses[:, CLASSES.index("glasses"), 8:16] = 18.0
    mask = torch.zeros(1, 1, 64, 64)
    mask[:, :, :40] = 1
    below = mask.flip(2)
    picture = torch.zeros(1, 3, 64, 64)
    clean, worn, hidden = (
        float(_not_face(lambda _, logits=logits: logits, picture, where))
        for logits, where in ((nowhere, mask), (glasses, mask), (glasses, below * (1 - mask)))
    )
    assert clean < 0.01 and hidden < 0.01 < 1 < worn
    assert abs(worn - 9 * 8 / 20) < 0.1  # nine nats on eight of the twenty rows


class _Plain:
    """Stands for generator, mapper, encoder, landmarks and parser: a latent's first numbers are a picture's colours,
    the next are added in a small square."""

    def synthesize(self, w, side):
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
        generator=plain,
        mapper=plain,
        census=Census(),
        inversion=InversionEncoder(),
    )


def plain_scene(face, mask, networks, params) -> Scene:
    return Scene(face, mask, networks, networks.generator.synthesize, params)


def test_whoever_brings_what_is_no_face_or_looks_like_the_photo_is_not_chosen():
    def parse(faces):  # what is dark is hair
        logits = torch.full((len(faces), len(CLASSES), *faces.shape[-2:]), -9.0)
        logits[:, CLASSES.index("skin")] = 0
        logits[:, CLASSES.index("hair")] = torch.where(faces.amax(1) < -0.2, 9.0, -9.0)
        return logits

    def encode(faces):
        return F.normalize(F.pad(F.adaptive_avg_pool2d(faces, 12).flatten(1), (0, 16)), dim=1)

    networks = replace(plain_networks(parse), encoder=encode, recognizer=lambda faces, frames: encode(faces))
    people = [torch.zeros(1, 17, 512) for _ in range(3)]
    for w, square in zip(people, ([-0.9, -0.9, -0.9], [0.0, 0.0, 0.0], [0.9, -0.9, 0.0]), strict=True):
        w[0, 0, :3], w[0, 0, 3:6] = 0.2, torch.tensor(square)
    hues = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(5))
    face, mask = 0.4 * hues, torch.ones(1, 1, 64, 64)
    alike = [people[0], people[1].clone(), people[1]]
    nothing = RefineParams(side=64, colour=0, landmarks=0, expression=0, gaze=0, forehead=0, layout=0, hues=0)

    def best(people=people, layout=0.0, hues=0.0, **weights) -> int:
        scene = plain_scene(face, mask, networks, replace(nothing, layout=layout, hues=hues))
        zero = {field.name: 0 for field in fields(ChoiceParams)}
        choice = ChoiceParams(**(zero | weights))
        return scene.best(people, networks.encoder(face), networks.mapper, choice)

    assert best(original=1) == 0  # whoever looks least like the photo
    assert best(original=1, face=1000) == 2  # of those without hair
    assert best(layout=1) == 1  # whose colours lie as the photo's do
    assert best(hues=1) == 0 and best(hues=-1) == 2  # grey is nearer to pale hues than strong ones are
    assert best(alike, unlike=1) == 0 and best(alike, unlike=-1) in (1, 2)  # the one unlike the two others
    assert best(near=1) == 0 and best(near=-1) == best(original=-1) != 0  # whoever is too near, the nearer the more
    assert best(near=1, far=1) == best(near=-1, far=1) == 0  # all are far enough: the first
    assert best(seen=1) == 0 and best(seen=-1) != 0  # whom the recognizer knows best
    assert best(seen=1, stranger=1) == best(seen=-1, stranger=1) == 0
    far = [people[1].clone(), people[1], people[1] + F.pad(torch.ones(1, 7, 512), (0, 0, 3, 7))]
    far[0][0, 5] = -2
    assert best(far, odd=1) == 1 and best(far, odd=-1) == 2  # whose latents are the average's
    assert best(alike, apart=1) == 0 and best(alike, apart=-1) in (1, 2)


def test_whoever_looks_of_another_sex_or_age_is_not_chosen():
    face, mask = torch.full((1, 3, 64, 64), 0.4), torch.ones(1, 1, 64, 64)
    zero = {field.name: 0 for field in fields(ChoiceParams)}
    nothing = RefineParams(side=64, colour=0, landmarks=0, expression=0, gaze=0, forehead=0, layout=0, hues=0)

    def best(*looks: tuple[float, float], **weights: float) -> int:
        """Of people who look so, to a photo of a woman of 40: a logit of sex, and years."""
        said = iter([(-3.0, 40.0), *looks])
        parse = lambda faces: torch.zeros(1, len(CLASSES), 8, 8)  # noqa: E731
        networks = replace(plain_networks(parse), apparent=lambda faces: torch.tensor([next(said)]))
        scene, people = plain_scene(face, mask, networks, nothing), [torch.zeros(1, 17, 512)] * len(looks)
        return scene.best(people, networks.encoder(face), networks.mapper, ChoiceParams(**(zero | weights)))

    assert best((1, 40), (-1, 40), sex=1) == 1
    assert best((-2, 40), (-5, 40), sex=1) == best((-5, 40), (-2, 40), sex=1) == 0  # nobody doubts either
    assert best((1, 49), (1, 31), (1, 43), age=1) == 2  # three years are none
    assert best((1, 37), (1, 20), (1, 43), age=1) == 0


def test_sex_counts_more_than_tone():
    code = torch.zeros(1, 448)
    other, darker = code.clone(), code.clone()
    other[:, CONDITIONS["sex"]] = 0.1
    darker[:, CONDITIONS["tone"]] = 0.1
    assert torch.allclose(apparent(other, code), SEX * apparent(darker, code))


def test_a_face_is_pulled_by_its_target_and_pushed_off_by_whom_a_recognizer_knows():
    networks = plain_networks(lambda faces: torch.zeros(1, len(CLASSES), 8, 8))
    w, face, mask = torch.zeros(1, 17, 512), torch.full((1, 3, 64, 64), 0.2), torch.ones(1, 1, 64, 64)
    target = F.normalize(torch.cat([torch.tensor([[1.0, 0.0, -1.0]]), torch.zeros(1, 445)], 1), dim=1)
    alone = RefineParams(steps=3, side=64, leave=0, conditions=0, identity=0, shunned=0, itself=0)
    led = lambda **how: refine(  # noqa: E731
        w, target, plain_scene(face, mask, networks, replace(alone, **how)), networks.mapper
    )
    idle = led()
    assert not torch.equal(led(identity=9), idle) and not torch.equal(led(shunned=9), idle)
    assert torch.equal(led(shunned=9, stranger=1), idle)  # who is a stranger is let be


def test_the_first_components_of_a_latent_alone_move():
    networks = plain_networks(lambda faces: torch.zeros(1, len(CLASSES), 8, 8))
    w, face, mask = torch.zeros(1, 17, 512), torch.rand(1, 3, 64, 64), torch.ones(1, 1, 64, 64)
    scene = plain_scene(face, mask, networks, RefineParams(steps=2, side=64, components=2))
    moved = refine(w, torch.zeros(1, 448), scene, networks.mapper)
    assert (moved[..., :2] != 0).any() and not moved[..., 2:].any()


def test_a_chosen_face_stays_what_tells_it_from_the_others():
    see = lambda faces, frames: F.normalize(F.adaptive_avg_pool2d(faces, 12).flatten(1), dim=1)  # noqa: E731
    networks = replace(plain_networks(lambda faces: torch.zeros(1, len(CLASSES), 8, 8)), recognizer=see)
    face, mask = torch.full((1, 3, 64, 64), 0.2), torch.ones(1, 1, 64, 64)
    people = [torch.zeros(1, 17, 512), torch.zeros(1, 17, 512)]
    people[0][0, 0, 3], people[1][0, 0, 4] = 0.5, 0.5
    alone = RefineParams(steps=5, side=64, leave=0, conditions=0, identity=0, shunned=0, itself=0, rising=1)

    def own(**how) -> float:
        """How much of the chosen one's own the recognizer sees in the end."""
        scene = plain_scene(face, mask, networks, replace(alone, **how))
        chosen = scene.best(people, networks.encoder(face), networks.mapper)
        w = refine(people[chosen], networks.encoder(face), scene, networks.mapper)
        assert scene.itself is not None
        return float(F.cosine_similarity(networks.recognizer(scene.drawn(w)[1], scene.frames), scene.itself))

    assert own(itself=50) > own() + 0.01
