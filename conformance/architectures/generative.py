"""Generative models in plain torch: GAN, diffusion, autoencoders."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as f

from conformance.architectures.case import Case, Sizes, images, squared_error


def gan_generator(s: Sizes) -> Case:
    """Noise to an image by transposed convolutions."""
    c = s.channels
    layers: list[nn.Module] = [nn.ConvTranspose2d(16, 4 * c, 4, bias=False)]
    for inputs, outputs in [(4 * c, 2 * c), (2 * c, c)]:
        layers += [nn.BatchNorm2d(inputs), nn.ReLU()]
        layers += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False)]
    layers += [nn.BatchNorm2d(c), nn.ReLU(), nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Tanh()]
    noise, target = torch.randn(s.batch, 16, 1, 1), torch.rand(s.batch, 3, 32, 32)
    return Case(nn.Sequential(*layers), (noise,), {}, squared_error(target))


def gan_discriminator(s: Sizes) -> Case:
    """Spectral norms, which move a buffer in every forward pass, and leaky rectifiers."""
    c, norm = s.channels, nn.utils.parametrizations.spectral_norm
    layers: list[nn.Module] = []
    for inputs, outputs in [(3, c), (c, 2 * c), (2 * c, 4 * c)]:
        layers += [norm(nn.Conv2d(inputs, outputs, 4, 2, 1)), nn.LeakyReLU(0.2)]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * c * (s.image // 8) ** 2, 1))
    return Case(module, (images(s),), {}, lambda y: f.softplus(-y).mean())


class TimedBlock(nn.Module):
    """A residual block that is shifted by the embedding of the time."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(f.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(f.silu(self.norm2(y)))


class PixelAttention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(4, channels), nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)
        y = f.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.out(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class DiffusionUNet(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.width = c
        self.time = nn.Sequential(nn.Linear(c, 4 * c), nn.SiLU(), nn.Linear(4 * c, 4 * c))
        self.first = nn.Conv2d(3, c, 3, padding=1)
        self.down1, self.narrow = TimedBlock(c, c, 4 * c), nn.Conv2d(c, 2 * c, 3, 2, 1)
        self.down2, self.attend = TimedBlock(2 * c, 2 * c, 4 * c), PixelAttention(2 * c)
        self.middle = TimedBlock(2 * c, 2 * c, 4 * c)
        self.widen, self.up = nn.Conv2d(2 * c, c, 3, padding=1), TimedBlock(2 * c, c, 4 * c)
        self.last = nn.Sequential(nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def embed(self, time: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=time.device) / half)
        angles = time[:, None] * rates
        waves = torch.cat([angles.sin(), angles.cos()], -1)
        return self.time(waves.to(self.first.weight.dtype))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        t = self.embed(time)
        fine = self.down1(self.first(x), t)
        y = self.middle(self.attend(self.down2(self.narrow(fine), t)), t)
        y = self.widen(f.interpolate(y, scale_factor=2.0, mode="nearest"))
        return self.last(self.up(torch.cat([y, fine], 1), t))


def diffusion_unet(s: Sizes) -> Case:
    """The noise in an image at a time, with GroupNorm and attention between pixels."""
    x, noise = torch.randn(2, s.batch, 3, 16, 16)
    time = torch.randint(0, 1000, (s.batch,))
    return Case(DiffusionUNet(max(s.channels, 8)), (x, time), {}, squared_error(noise))


def autoencoder(s: Sizes) -> Case:
    c = s.channels
    module = nn.Sequential(
        nn.Conv2d(3, c, 3, 2, 1),
        nn.ELU(),
        nn.Conv2d(c, 2 * c, 3, 2, 1),
        nn.PReLU(2 * c),
        nn.Conv2d(2 * c, 4, 1),
        nn.Conv2d(4, 4 * c, 3, padding=1),
        nn.PixelShuffle(2),
        nn.ELU(),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        nn.Conv2d(c, 3, 3, padding=1, padding_mode="reflect"),
        nn.Sigmoid(),
    )
    x = torch.rand(s.batch, 3, s.image, s.image)
    return Case(module, (x,), {}, lambda y: f.binary_cross_entropy(y, x))


class VAE(nn.Module):
    def __init__(self, s: Sizes, pixels: int = 64) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(pixels, s.inner), nn.GELU())
        self.mean, self.spread = nn.Linear(s.inner, 8), nn.Linear(s.inner, 8)
        self.decode = nn.Sequential(nn.Linear(8, s.inner), nn.GELU(), nn.Linear(s.inner, pixels))

    def forward(
        self, x: torch.Tensor, noise: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.encode(x)
        mean, spread = self.mean(h), self.spread(h)  # spread: the logarithm of the variance
        if noise is None:
            noise = torch.randn_like(mean)
        return self.decode(mean + noise * torch.exp(spread / 2)), mean, spread


def vae_case(s: Sizes, noise: torch.Tensor | None) -> Case:
    x = torch.rand(4 * s.batch, 64)

    def loss(outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        y, mean, spread = outputs
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return f.binary_cross_entropy_with_logits(y, x, reduction="sum") / len(x) + divergence

    return Case(VAE(s), (x, noise), {}, loss, random=noise is None)


def vae(s: Sizes) -> Case:
    """The noise is an input."""
    return vae_case(s, torch.randn(4 * s.batch, 8))


def vae_drawing(s: Sizes) -> Case:
    """The module draws its noise."""
    return vae_case(s, None)


GENERATIVE = (
    gan_generator, gan_discriminator, diffusion_unet, autoencoder, vae, vae_drawing,
)  # fmt: skip
