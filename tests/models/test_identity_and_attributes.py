"""Identity encoder, attribute encoder, mapper and compensation layer, by their contracts."""

import torch

from anonface import weights
from anonface.models.attribute_encoder import AttributeEncoder, IdentityCompensation, LatentMapper
from anonface.models.graph import Graph
from anonface.models.identity import IdentityEncoder
from anonface.training.identity import start_from_teachers


def test_codes_are_unit_and_join_the_trunks_by_a_fixed_mixture():
    encoder = IdentityEncoder().eval()
    faces = torch.rand(3, 3, 256, 256, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.inference_mode():
        a, b = encoder.parts(faces)
        codes = encoder(faces)
    assert codes.shape == (3, 448)
    assert torch.allclose(codes.norm(dim=1), torch.ones(3), atol=1e-5)
    share = encoder.params.share
    expected = share * a[0] @ a[1] + (1 - share) * b[0] @ b[1]
    assert torch.allclose(codes[0] @ codes[1], expected, atol=1e-5)


def test_the_code_of_a_face_hardly_depends_on_the_crop_size():
    encoder = IdentityEncoder().eval()
    small = torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(2)) * 2 - 1
    large = small.repeat_interleave(4, 2).repeat_interleave(4, 3)
    with torch.inference_mode():
        assert torch.allclose(encoder(small), encoder(large), atol=1e-5)


def test_trunks_with_the_teachers_weights_give_their_embeddings():
    encoder = IdentityEncoder().eval()
    teacher_a, teacher_b = weights.graph("teacher-a"), weights.graph("teacher-b")
    start_from_teachers(encoder, teacher_a, teacher_b)
    x = torch.rand(2, 3, 112, 112, generator=torch.Generator().manual_seed(3)) * 2 - 1
    with torch.inference_mode():
        assert torch.allclose(encoder.trunk_a(x), Graph(teacher_a)(x), atol=1e-4)
        ratio = torch.cosine_similarity(encoder.trunk_b(x), Graph(teacher_b)(x * 127.5 + 127.5))
    assert ratio.min() > 0.999


def test_one_attribute_code_for_each_latent_whatever_the_batch():
    encoder, mapper = AttributeEncoder(), LatentMapper()  # fresh: batch norms are always in evaluation mode
    faces = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(4)) * 2 - 1
    z = torch.nn.functional.normalize(torch.randn(2, 448, generator=torch.Generator().manual_seed(5)), dim=1)
    with torch.inference_mode():
        w = mapper(z, encoder(faces))
        single = mapper(z[:1], encoder(faces[:1]))
    assert w.shape == (2, encoder.params.n_latents, 512)
    assert torch.allclose(w[:1], single, atol=1e-5)


def test_whitened_coordinates_and_latents_are_each_others_inverse():
    mapper = LatentMapper()
    mapper.mean.copy_(torch.linspace(-1, 1, 512))
    mapper.std.copy_(torch.linspace(0.1, 2, 512))
    mapper.axes.copy_(torch.linalg.qr(torch.randn(512, 512, generator=torch.Generator().manual_seed(6)))[0])
    u = torch.randn(2, 17, 512, generator=torch.Generator().manual_seed(7))
    assert not torch.allclose(mapper.to_w(u), u)
    assert torch.allclose(mapper.to_u(mapper.to_w(u)), u, atol=1e-3)


def test_a_fresh_compensation_layer_returns_its_input():
    z = torch.nn.functional.normalize(torch.randn(3, 448), dim=1)
    layer = IdentityCompensation()
    assert torch.allclose(layer(z), z, atol=1e-6)
    layer.layers[-1].bias.data += 0.1
    assert not torch.allclose(layer(z), z, atol=1e-2)
