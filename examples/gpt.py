"""A small GPT that learns the standard library in bfloat16, without a scaler. Nothing to report."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

import ampwatch

from shared import conclude, parser, text

VOCABULARY, WIDTH, HEADS, CONTEXT = 128, 128, 4, 64


class Block(nn.Module):
    """Attention and a feed-forward net, each added to the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stream after this block, shape (B, T, D) as ``x``."""
        # (B, T, 3 D) -> three times (B, heads, T, D / heads)
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Predicts the next character; the embedding and the head share their weight."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (B, T, V), of tokens of shape (B, T)."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(place))))


def main() -> None:
    """Train."""
    args = parser(__doc__, steps=300).parse_args()
    device = args.device
    torch.manual_seed(0)
    corpus = text(device)
    model = GPT(layers=4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def warmup_then_cosine(step: int) -> float:
        return min((step + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * step / args.steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_then_cosine)
    watch = ampwatch.monitor(model, serve=args.page)

    for _ in range(args.steps):
        starts = torch.randint(len(corpus) - CONTEXT, (8, 1), device=device)
        passages = corpus[starts + torch.arange(CONTEXT + 1, device=device)]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(passages[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), passages[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    print(f"loss {loss.item():.3f}")
    conclude(args.json, watch)


if __name__ == "__main__":
    main()
