"""The networks of DBAF and HFORD by their equations, and their independence of the batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.models.dbaf import DBAF, DBAFParams
from anonface.models.hford import HFORD, HFORDParams
from anonface.models.inversion import CODE_OF_LATENT, WIDTHS, InversionEncoder, InversionParams
from anonface.models.latent_editing import (
    CODES,
    FEATURE_CODES,
    LEVELS,
    SEPARATION,
    FaceEditor,
    LatentEditor,
    MultiHeadAttention,
    by_level,
    key_identity,
)
from anonface.models.mobile_stylegan import MobileStyleGAN, MobileStyleGANParams

SIZE = 8  # coordinates of a code, and channels of the generator
EDITORS = {
    "dbaf": lambda: DBAF(DBAFParams(code=SIZE, heads=2, head=4, maps=SIZE)),
    "hford": lambda: HFORD(HFORDParams(code=SIZE, depth=2, heads=2, head=4, hidden=12, maps=SIZE, reduction=4)),
}


@pytest.fixture(params=EDITORS)
def editor(request: pytest.FixtureRequest) -> LatentEditor:
    torch.manual_seed(0)
    return EDITORS[request.param]().eval()


def small(editor: LatentEditor) -> FaceEditor:
    """A face editor with a small encoder and generator of random weights."""
    generator = MobileStyleGAN(
        MobileStyleGANParams(style=SIZE, base=SIZE, channels=(SIZE,) * 7, early_heads=((4, 4), (5, 2)))
    )
    for parameter in generator.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    encoder = InversionEncoder(InversionParams(squeeze=4, hidden=8, style=SIZE))
    for head in encoder.heads:  # larger than its initial weights
        torch.nn.init.normal_(head[-1].weight, std=1.0)
    return FaceEditor(encoder, editor, generator).eval()


def features(count: int) -> tuple[Tensor, ...]:
    return tuple(torch.randn(count, width, side, side) for width, side in zip(WIDTHS, (16, 32, 64), strict=True))


@pytest.mark.slow
@torch.no_grad()
def test_results_do_not_depend_on_the_batch(editor: LatentEditor) -> None:
    torch.nn.init.normal_(editor.strength)
    networks = small(editor).double()  # rounding is small compared with any influence
    faces = torch.rand(3, 3, 256, 256, dtype=torch.float64) * 2 - 1
    keys = torch.randn(3, 3, SIZE, dtype=torch.float64)
    together = networks(faces, keys, 256)
    assert together.shape == (3, 3, 256, 256)
    singles = torch.cat([networks(faces[i : i + 1], keys[i : i + 1], 256) for i in range(3)])
    torch.testing.assert_close(together, singles)
    others = torch.cat([faces[:1], faces[1:].flip(0) * 0.5])
    torch.testing.assert_close(networks(others, keys, 256)[:1], singles[:1])
    assert not torch.allclose(together[0], together[1], atol=0.05)


@torch.no_grad()
def test_attention_is_softmax_of_scaled_products_among_a_face_s_codes() -> None:
    torch.manual_seed(0)
    attention, x = MultiHeadAttention(SIZE, 2, 4), torch.randn(2, 5, SIZE)
    for face, seen in zip(x, attention(x), strict=True):
        heads = []
        for h in range(2):
            rows = slice(4 * h, 4 * h + 4)
            query, key, value = (
                face @ project.weight[rows].T for project in (attention.query, attention.key, attention.value)
            )
            heads.append(torch.softmax(query @ key.T / 2, dim=1) @ value)
        torch.testing.assert_close(seen, attention.out(torch.cat(heads, dim=1)))


@torch.no_grad()
def test_identity_and_attributes_add_up_to_the_codes_and_levels_do_not_mix(editor: LatentEditor) -> None:
    codes = torch.randn(2, CODES, SIZE)
    identity, attributes = editor.split(codes)
    torch.testing.assert_close(identity + attributes, codes)
    assert attributes.abs().max() > 0.01
    changed = codes.clone()
    changed[:, 5] += torch.randn(SIZE)  # of the medium level
    differs = ~torch.isclose(editor.split(changed)[1], attributes).all(2)
    assert not differs[:, :4].any() and differs[:, 4:8].all() and not differs[:, 8:].any()


@torch.no_grad()
def test_each_level_depends_on_its_own_key_only(editor: LatentEditor) -> None:
    identity, key = torch.randn(2, CODES, SIZE), torch.randn(2, 3, SIZE)
    new = editor.rewrite(identity, key)
    assert new.shape == identity.shape
    other = key.clone()
    other[:, 2] += 1
    differs = ~torch.isclose(editor.rewrite(identity, other), new).all(2)
    assert not differs[:, :8].any() and differs[:, 8:].all()


@torch.no_grad()
def test_a_fresh_editor_gives_the_key_s_identity_and_keeps_pose_and_light(editor: LatentEditor) -> None:
    networks = small(editor)
    codes, key = torch.randn(8, CODES, SIZE), torch.randn(8, 3, SIZE)
    made = networks.edit(codes, key)
    for code, whose in ((0, codes[:, 0]), (13, codes[:, 13]), (5, key[:, 1])):
        assert F.cosine_similarity(made[:, code].flatten(), whose.flatten(), dim=0) > 0.9
    assert (made - key_identity(codes, key)).square().mean() < 0.2


def test_the_rewriters_have_the_papers_layers() -> None:
    dbaf, hford = EDITORS["dbaf"](), EDITORS["hford"]()
    assert len(dbaf.rewriter.block) == 7
    assert [len(level) for level in hford.rewriter.levels] == [3] * len(LEVELS)
    codes = torch.randn(1, 1, 2 * SIZE).expand(1, CODES, 2 * SIZE)
    with torch.no_grad():
        assert torch.allclose(dbaf.rewriter(codes)[:, 0], dbaf.rewriter(codes)[:, 13])
        assert not torch.allclose(hford.rewriter(codes)[:, 0], hford.rewriter(codes)[:, 13])


@torch.no_grad()
def test_maar_is_equations_6_to_8_with_every_repetition() -> None:
    torch.manual_seed(0)
    scale, seen = EDITORS["dbaf"]().retention.scales[1], torch.randn(2, WIDTHS[1], 32, 32)
    wide = scale.expand(seen)
    repeated = (wide.amax(1, keepdim=True) + wide.mean(1, keepdim=True)).expand_as(wide)
    # any d x d layer whose rows sum to the kept numbers is the same on repeated inputs
    layer = torch.randn(SIZE, SIZE)
    layer[:, -1] += scale.channel.weight.flatten() - layer.sum(1)
    channel = torch.sigmoid(torch.einsum("oc,bchw->bohw", layer, repeated) + scale.channel.bias[:, None, None])
    pooled = [channel.amax((2, 3), keepdim=True), channel.mean((2, 3), keepdim=True)]
    joined = torch.cat([part.expand_as(channel) for part in pooled], dim=1)
    spatial = torch.sigmoid(scale.spatial(joined.movedim(1, 3)).movedim(3, 1))
    torch.testing.assert_close(scale(seen), spatial * channel * wide, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_arm_weighs_channels_and_then_places() -> None:
    torch.manual_seed(0)
    scale, seen = EDITORS["hford"]().retention.scales[0], torch.randn(2, WIDTHS[0], 16, 16)
    wide = scale.expand(seen)
    ratio = scale(seen) / wide
    # the weight of a pixel is a number per channel times a number per place: a matrix of rank one
    rank = torch.linalg.svdvals(ratio.flatten(2))
    assert (rank[:, 1] < 1e-3 * rank[:, 0]).all() and ratio.min() > 0 and ratio.max() < 1
    assert not torch.allclose(ratio[..., 3, 5], ratio[..., 9, 2], atol=1e-4)


def test_at_zero_strength_maps_change_nothing_and_strength_has_a_gradient(editor: LatentEditor) -> None:
    networks = small(editor)
    codes, seen = torch.randn(1, CODES, SIZE), features(1)
    plain = networks.generator.synthesize(networks.encoder.to_latents(codes), 256)
    drawn = networks.render(codes, seen, 256)
    assert torch.equal(drawn, plain)
    drawn.square().mean().backward()
    assert editor.strength.grad is not None and (editor.strength.grad != 0).all()
    with torch.no_grad():
        editor.strength.fill_(0.1)
        assert not torch.allclose(networks.render(codes, seen, 256), plain, atol=1e-3)
        assert [m.shape[-1] for pair in editor.details(seen).values() for m in pair] == [16, 16, 32, 32, 64, 64]
        replaced = torch.zeros(1, 1, 128, 128)
        assert torch.equal(networks.render(codes, seen, 256, replaced), networks.render(codes, seen, 256))
        assert torch.equal(networks.render(codes, seen, 256, 1 - replaced), plain)  # no maps within a replaced face
        replaced[..., 64:] = 1
        for left, right in (m.chunk(2, dim=3) for pair in editor.details(seen, replaced).values() for m in pair):
            assert left.any() and not right.any()


@torch.no_grad()
def test_the_encoder_adds_offsets_to_the_first_code_and_maps_codes_to_latents() -> None:
    torch.manual_seed(0)
    encoder = small(EDITORS["dbaf"]()).encoder
    codes, seen = encoder(torch.rand(2, 3, 512, 512) * 2 - 1)
    assert codes.shape == (2, CODES, SIZE)
    assert [tuple(m.shape[1:]) for m in seen] == [(96, 16, 16), (32, 32, 32), (24, 64, 64)]
    half = encoder(F.avg_pool2d(torch.zeros(2, 3, 512, 512), 2))[0]
    assert torch.equal(half, encoder(torch.zeros(2, 3, 512, 512))[0])
    latents = encoder.to_latents(codes)
    assert latents.shape[1] == len(CODE_OF_LATENT) == MobileStyleGAN().n_latents
    assert torch.equal(latents[:, 1], latents[:, 2]) and sorted(set(CODE_OF_LATENT)) == list(range(CODES))
    torch.testing.assert_close(encoder.to_u(encoder.to_w(codes)), codes)
    heads = encoder.heads[0]
    before = encoder(torch.zeros(1, 3, 256, 256))[0]
    heads[-1].bias[:SIZE] += 1  # head 0
    torch.testing.assert_close(encoder(torch.zeros(1, 3, 256, 256))[0], before + 1)


def test_levels_have_the_papers_codes() -> None:
    parts = by_level(torch.arange(CODES, dtype=torch.float32).view(1, CODES, 1) + 1)
    assert [(int(part[0, 0, 0]), int(part[0, -1, 0])) for part in parts] == [(1, 4), (5, 8), (9, 14)]


@torch.no_grad()
def test_anonymized_codes_of_two_keys_are_further_apart_than_edits(editor: LatentEditor) -> None:
    networks, codes = small(editor), torch.randn(1, CODES, SIZE)
    first, second = torch.randn(2, 1, 3, SIZE)
    edits = networks.edit(codes, first) - networks.edit(codes, second)
    people = key_identity(codes, first) - key_identity(codes, second)
    anonymized = networks.anonymize(codes, first) - networks.anonymize(codes, second)
    factor = torch.ones(CODES, 1)
    factor[FEATURE_CODES] = SEPARATION
    torch.testing.assert_close(anonymized, factor * torch.lerp(edits, people, editor.key_share))


@torch.no_grad()
def test_anonymized_codes_keep_the_attributes_of_the_face(editor: LatentEditor) -> None:
    torch.nn.init.normal_(editor.readings)
    networks, codes, key = (
        small(editor).double(),
        torch.randn(2, CODES, SIZE).double(),
        torch.randn(2, 3, SIZE).double(),
    )
    read = lambda some: some[:, FEATURE_CODES].flatten(1) @ editor.readings.flatten(0, 1)  # noqa: E731
    torch.testing.assert_close(read(networks.anonymize(codes, key)), read(codes))
    assert not torch.allclose(read(networks.edit(codes, key)), read(codes), atol=0.5)
    change = torch.randn(2, CODES, SIZE).double()
    held = editor.attribute_change(change)
    torch.testing.assert_close(editor.attribute_change(held), held)  # the smallest change is its own projection
    assert float(held.norm()) < float(change.norm()) and not held[:, : FEATURE_CODES.start].any()
