"""NN-Stretch, table 6: multiply-adds and parameters of the networks, counted in our zoo."""

from __future__ import annotations

from tutorials import zoo
from tutorials.zoo.count import count

THEIRS = {
    "resnet34": (3.7, 21.8),
    "resnet50": (4.1, 25.6),
    "regnetx_1_6gf": (1.6, 11.2),
    "regnetx_4gf": (4.0, 20.6),
    "efficientnet_lite4": (2.6, 13.0),
}
"""Billions of multiply-adds, and millions of parameters; EfficientNet-B5's are those before its
squeeze-and-excitation was taken out."""


def main() -> None:
    """Print the table."""
    print("| network | G multiply-adds: ours, paper | M parameters: ours, paper |")
    print("| --- | --- | --- |")
    for name, (work, size) in THEIRS.items():
        parameters, ours = count(zoo.build(name))
        print(f"| {name} | {ours / 1e9:.2f}, {work} | {parameters / 1e6:.1f}, {size} |")


if __name__ == "__main__":
    main()
