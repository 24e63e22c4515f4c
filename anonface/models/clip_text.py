"""CLIP's text encoder as Stable Diffusion uses it for a fixed prompt, with the names of Hugging Face's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class CLIPTextParams:
    """Sizes, named as in the files' ``config.json``; the defaults are CLIP ViT-L/14's, of Stable Diffusion 1."""

    vocab_size: int = 49408
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    max_position_embeddings: int = 77
    layer_norm_eps: float = 1e-5
    hidden_act: str = "quick_gelu"

    def __post_init__(self) -> None:
        if self.hidden_act not in ("quick_gelu", "gelu"):
            raise ValueError(f"unknown activation {self.hidden_act!r}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"{self.hidden_size} channels do not share out among {self.num_attention_heads} heads")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> CLIPTextParams:
        """From a configuration, whose other fields are ignored."""
        return cls(**{field.name: config[field.name] for field in fields(cls) if field.name in config})


class _Attention(nn.Module):
    def __init__(self, params: CLIPTextParams) -> None:
        super().__init__()
        width = params.hidden_size
        self.heads = params.num_attention_heads
        self.k_proj, self.v_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.q_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class _MLP(nn.Module):
    def __init__(self, params: CLIPTextParams) -> None:
        super().__init__()
        self.quick = params.hidden_act == "quick_gelu"
        self.fc1 = nn.Linear(params.hidden_size, params.intermediate_size)
        self.fc2 = nn.Linear(params.intermediate_size, params.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        return self.fc2(x * torch.sigmoid(1.702 * x) if self.quick else F.gelu(x))


class _Layer(nn.Module):
    def __init__(self, params: CLIPTextParams) -> None:
        super().__init__()
        self.self_attn = _Attention(params)
        self.layer_norm1 = nn.LayerNorm(params.hidden_size, params.layer_norm_eps)
        self.mlp = _MLP(params)
        self.layer_norm2 = nn.LayerNorm(params.hidden_size, params.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class _Embeddings(nn.Module):
    def __init__(self, params: CLIPTextParams) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(params.vocab_size, params.hidden_size)
        self.position_embedding = nn.Embedding(params.max_position_embeddings, params.hidden_size)


class _Encoder(nn.Module):
    def __init__(self, params: CLIPTextParams) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(params) for _ in range(params.num_hidden_layers))


class _TextModel(nn.Module):
    def __init__(self, params: CLIPTextParams) -> None:
        super().__init__()
        self.embeddings = _Embeddings(params)
        self.encoder = _Encoder(params)
        self.final_layer_norm = nn.LayerNorm(params.hidden_size, params.layer_norm_eps)


class CLIPText(nn.Module):
    """Token numbers [B, L] -> the last layer's states [B, L, D]."""

    def __init__(self, params: CLIPTextParams | None = None) -> None:
        super().__init__()
        self.params = params or CLIPTextParams()
        self.text_model = _TextModel(self.params)

    def forward(self, tokens: Tensor) -> Tensor:
        model = self.text_model
        x = model.embeddings.token_embedding(tokens) + model.embeddings.position_embedding.weight[: tokens.shape[1]]
        for layer in model.encoder.layers:
            x = layer(x)
        return model.final_layer_norm(x)
