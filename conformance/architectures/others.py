"""Experts, graphs, rays, policies, torch's own transformer layers, and forms of weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as f

from conformance.architectures.case import (
    Case,
    Sizes,
    classes,
    cross_entropy,
    padding_mask,
    squared_error,
    words,
)


class Experts(nn.Module):
    """Every expert sees every word; a gate keeps the two best for each."""

    def __init__(self, d: int, inner: int, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(d, experts, bias=False)
        self.first = nn.Parameter(torch.randn(experts, d, inner) / d**0.5)
        self.second = nn.Parameter(torch.randn(experts, inner, d) / inner**0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.softmax(self.gate(x), -1)
        best, where = scores.topk(2, -1)
        weights = torch.zeros_like(scores).scatter(-1, where, best / best.sum(-1, keepdim=True))
        hidden = f.silu(torch.einsum("btd,edi->btei", x, self.first))
        y = torch.einsum("btei,eid,bte->btd", hidden, self.second, weights)
        balance = (scores.mean((0, 1)) * (weights > 0).float().mean((0, 1))).sum()
        return x + y, balance


class ExpertModel(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(s.words, s.hidden)
        self.layers = nn.ModuleList(Experts(s.hidden, s.inner) for _ in range(s.layers))
        self.head = nn.Linear(s.hidden, s.labels)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x, balances = self.embed(x), []
        for layer in self.layers:
            x, balance = layer(x)
            balances.append(balance)
        return self.head(x), balances


def mixture_of_experts(s: Sizes) -> Case:
    labels = classes(s, s.batch, s.length)

    def loss(outputs: tuple[torch.Tensor, list[torch.Tensor]]) -> torch.Tensor:
        scores, balances = outputs
        return cross_entropy(labels)(scores) + 0.01 * torch.stack(balances).sum()

    return Case(ExpertModel(s), (words(s),), {}, loss)


class GraphNetwork(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embed = nn.Linear(6, s.hidden)
        self.message = nn.Linear(2 * s.hidden, s.hidden)
        self.update = nn.GRUCell(s.hidden, s.hidden)
        self.head = nn.Linear(2 * s.hidden, s.labels)

    def forward(
        self, nodes: torch.Tensor, edges: torch.Tensor, owner: torch.Tensor, degree: torch.Tensor
    ) -> torch.Tensor:
        x = torch.tanh(self.embed(nodes))
        source, target = edges
        for _ in range(2):
            sent = torch.relu(self.message(torch.cat([x[source], x[target]], -1)))
            x = self.update(torch.zeros_like(x).index_add(0, target, sent) / degree[:, None], x)
        total = x.new_zeros(4, x.shape[1]).scatter_add(0, owner[:, None].expand_as(x), x)
        most = x.new_zeros(4, x.shape[1]).scatter_reduce(
            0, owner[:, None].expand_as(x), x, "amax", include_self=False
        )
        return self.head(torch.cat([total, most], -1))


def graph_network(s: Sizes) -> Case:
    """Messages along edges by index_add, one row for each of four graphs by scatters."""
    count = 8 * s.length
    edges = torch.randint(count, (2, 3 * count))
    degree = torch.bincount(edges[1], minlength=count).clamp(min=1).float()
    args = (torch.randn(count, 6), edges, torch.arange(count) % 4, degree)
    return Case(GraphNetwork(s), args, {}, cross_entropy(classes(s, 4)))


class Nerf(nn.Module):
    def __init__(self, width: int, octaves: int = 4) -> None:
        super().__init__()
        self.register_buffer("rates", 2.0 ** torch.arange(octaves))
        place, ray = 6 * octaves, 6 * octaves
        self.near = nn.Sequential(nn.Linear(place, width), nn.ReLU(), nn.Linear(width, width))
        self.far = nn.Sequential(nn.Linear(width + place, width), nn.ReLU())
        self.density = nn.Linear(width, 1)
        self.color = nn.Sequential(
            nn.Linear(width + ray, width), nn.ReLU(), nn.Linear(width, 3), nn.Sigmoid()
        )

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        angles = (x[..., None] * self.rates).flatten(-2)
        return torch.cat([angles.sin(), angles.cos()], -1)

    def forward(self, start: torch.Tensor, ray: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
        points = start[:, None] + ray[:, None] * depths[..., None]  # (rays, depths, 3)
        place = self.encode(points)
        h = self.far(torch.cat([torch.relu(self.near(place)), place], -1))
        density = f.softplus(self.density(h)[..., 0])
        direction = self.encode(f.normalize(ray, dim=-1))[:, None].expand(-1, depths.shape[1], -1)
        color = self.color(torch.cat([h, direction], -1))
        step = torch.diff(depths, dim=-1, append=depths[:, -1:] + 0.1)
        seen = torch.exp(-torch.cumsum(density * step, -1))
        weight = (1 - torch.exp(-density * step)) * seen.roll(1, -1)
        return (weight[..., None] * color).sum(1)


def nerf(s: Sizes) -> Case:
    """Colours of rays, from densities and colours along each."""
    rays = 8 * s.batch
    start, ray, color = torch.randn(3, rays, 3)
    depths = torch.linspace(0.1, 1, 8).expand(rays, 8).contiguous()
    return Case(Nerf(s.inner), (start, ray, depths), {}, squared_error(color.sigmoid()))


class Decision(NamedTuple):
    log_probability: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor


class ActorCritic(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, s.inner), nn.Tanh(), nn.Linear(s.inner, s.inner))
        self.actor, self.critic = nn.Linear(s.inner, s.labels), nn.Linear(s.inner, 1)
        self.spread = nn.Parameter(torch.zeros(2))
        self.move = nn.Linear(s.inner, 2)

    def forward(self, x: torch.Tensor, action: torch.Tensor, move: torch.Tensor) -> Decision:
        h = torch.tanh(self.body(x))
        logs = torch.log_softmax(self.actor(h), -1)
        normal = torch.distributions.Normal(self.move(h), self.spread.exp(), validate_args=False)
        chosen = logs.gather(-1, action[:, None])[:, 0] + normal.log_prob(move).sum(-1)
        entropy = -(logs.exp() * logs).sum(-1) + normal.entropy().sum(-1)
        return Decision(chosen, entropy, self.critic(h)[:, 0])


def actor_critic(s: Sizes) -> Case:
    """Log-probabilities of what was done, and the value: PPO's loss of both."""
    n = 8 * s.batch
    x, action, move = torch.randn(n, 8), classes(s, n), torch.randn(n, 2)
    reward, before = torch.randn(n), torch.randn(n) - 4

    def loss(y: Decision) -> torch.Tensor:
        ratio = torch.exp(y.log_probability - before)
        gain = reward - y.value.detach()
        clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        return (f.mse_loss(y.value, reward) - clipped - 0.01 * y.entropy).mean()

    return Case(ActorCritic(s), (x, action, move), {}, loss)


class EncoderModel(nn.Module):
    def __init__(self, s: Sizes, norm_first: bool, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(s.words, s.hidden, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            s.hidden, s.heads, s.inner, dropout, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, s.layers, enable_nested_tensor=False)
        self.head = nn.Linear(s.hidden, s.labels)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(x), src_key_padding_mask=mask == 0))


def transformer_encoder(s: Sizes, norm_first: bool = False, dropout: float = 0.0) -> Case:
    module, labels = EncoderModel(s, norm_first, dropout), classes(s, s.batch, s.length)
    args = (words(s), padding_mask(s))
    return Case(module, args, {}, cross_entropy(labels), random=dropout > 0)


def transformer_encoder_pre_norm(s: Sizes) -> Case:
    return transformer_encoder(s, norm_first=True)


def transformer_encoder_dropout(s: Sizes) -> Case:
    return transformer_encoder(s, dropout=0.1)


class CrossAttention(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(4, s.hidden))
        self.attend = nn.MultiheadAttention(s.hidden, s.heads, kdim=6, vdim=6, batch_first=True)
        self.head = nn.Linear(s.hidden, s.labels)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query = self.query.expand(len(x), -1, -1)
        y, weights = self.attend(query, x, x, average_attn_weights=True)
        return self.head(y.mean(1)), weights


def multihead_attention(s: Sizes) -> Case:
    """Learned queries over a sequence; the weights of attention are an output, too."""
    labels = classes(s)

    def loss(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        scores, weights = outputs
        return cross_entropy(labels)(scores) + 0.1 * weights.square().mean()

    return Case(CrossAttention(s), (torch.randn(s.batch, s.length, 6),), {}, loss)


class TiedModel(nn.Module):
    """The words' embeddings are the weights of the scores; two layers are one."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(s.words, s.hidden, padding_idx=0)
        layer = nn.Linear(s.hidden, s.hidden)
        self.layers = nn.Sequential(layer, nn.Mish(), layer, nn.LayerNorm(s.hidden))
        self.head = nn.Linear(s.hidden, s.words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(x)))


def tied_weights(s: Sizes) -> Case:
    x = words(s)
    x[0, -3:] = 0  # the padding's row gets no gradient from here, and one from the scores
    return Case(TiedModel(s), (x,), {}, cross_entropy(x.roll(-1, 1)))


class BagOfWords(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(s.words, s.hidden, padding_idx=0)
        self.bag = nn.EmbeddingBag(s.words, s.hidden, mode="mean")
        self.head = nn.Linear(2 * s.hidden, s.labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = (x != 0).sum(1, keepdim=True)
        mean = self.embed(x).sum(1) / count
        return self.head(torch.cat([mean, self.bag(x)], -1))


def padded_embedding(s: Sizes) -> Case:
    x = words(s) * padding_mask(s)
    return Case(BagOfWords(s), (x,), {}, cross_entropy(classes(s)))


class Branches(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, s.hidden), nn.Linear(8, s.hidden)
        self.head = nn.Linear(s.hidden, s.labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def positive(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.first(x))

        def negative(x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.second(x))

        return self.head(torch.cond(x.sum() > 0, positive, negative, (x,)))


def control_flow(s: Sizes) -> Case:
    """A branch by the values of the batch, as torch.cond."""
    return Case(Branches(s), (torch.randn(s.batch, 8),), {}, cross_entropy(classes(s)))


OTHERS = (
    mixture_of_experts, graph_network, nerf, actor_critic, transformer_encoder,
    transformer_encoder_pre_norm, transformer_encoder_dropout, multihead_attention, tied_weights,
    padded_embedding, control_flow,
)  # fmt: skip
