"""Our networks: residual ones (He et al. 2016), and a small one for the demo.

The residual networks for small images have a 3x3 stem at full resolution and no max-pooling.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

# From this side length on, the last feature map keeps a 2x2 grid: the Tiny-ImageNet variant of the focal-loss work.
_GRID_FROM = 64
_TINY_GRID = 2


class Block(nn.Module):
    """Convolutions around a shortcut.

    A basic block has two 3x3 convolutions; a bottleneck has one between two 1x1 ones, four times as wide at the end.
    """

    def __init__(self, channels_in: int, width: int, *, stride: int, bottleneck: bool) -> None:
        super().__init__()
        sizes = [(width, 3, stride), (width, 3, 1)]
        if bottleneck:
            sizes = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
        layers: list[nn.Module] = []
        channels = channels_in
        for channels_out, size, step in sizes:
            layers += [_conv(channels, channels_out, size, step), nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True)]
            channels = channels_out
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            self.shortcut = nn.Sequential(_conv(channels_in, channels, 1, stride), nn.BatchNorm2d(channels))
        self.channels = channels

    def forward(self, features: Tensor) -> Tensor:
        """Map `(N, C, H, W)` to `(N, channels, H / stride, W / stride)`."""
        return functional.relu(self.body(features) + self.shortcut(features), inplace=True)


class ResNet(nn.Module):
    """Stem, stages of residual blocks, average pooling, one linear layer.

    `depths` are the numbers of blocks; every stage but the first halves the resolution. The last feature map is
    averaged down to `grid x grid` cells, each with its own weights. With `photographs`, the stem and a max-pooling
    quarter the resolution before the first stage.
    """

    def __init__(
        self,
        depths: Sequence[int],
        *,
        bottleneck: bool,
        widths: Sequence[int],
        n_classes: int,
        channels: int = 3,
        grid: int = 1,
        photographs: bool = False,
    ) -> None:
        super().__init__()
        self.stem = _conv(channels, widths[0], 3)
        if photographs:
            self.stem = _conv(channels, widths[0], 7, stride=2)
        self.photographs = photographs
        self.norm = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        current = widths[0]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for index in range(depth):
                halves = stage > 0 and index == 0
                block = Block(current, width, stride=1 + halves, bottleneck=bottleneck)
                blocks.append(block)
                current = block.channels
        self.blocks = nn.Sequential(*blocks)
        self.grid = grid
        self.head = nn.Linear(current * grid * grid, n_classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(N, K)` of normalised images `(N, C, H, W)`."""
        features = functional.relu(self.norm(self.stem(images)), inplace=True)
        if self.photographs:
            features = functional.max_pool2d(features, 3, stride=2, padding=1)
        logits: Tensor = self.head(pool(self.blocks(features), self.grid))
        return logits


def resnet18(*, n_classes: int, image_shape: tuple[int, int, int]) -> ResNet:
    """ResNet-18 for photographs: 11,181,642 parameters for 10 classes of colour images."""
    widths = (64, 128, 256, 512)
    channels = image_shape[0]
    return ResNet(
        (2, 2, 2, 2), bottleneck=False, widths=widths, n_classes=n_classes, channels=channels, photographs=True
    )


def resnet32(*, n_classes: int, image_shape: tuple[int, int, int]) -> ResNet:
    """ResNet-32 with 1x1 convolutions as shortcuts: 466,906 parameters for 10 classes of colour images."""
    widths = (16, 32, 64)
    return ResNet((5, 5, 5), bottleneck=False, widths=widths, n_classes=n_classes, channels=image_shape[0])


def resnet50(*, n_classes: int, image_shape: tuple[int, int, int]) -> ResNet:
    """ResNet-50 for small images: 23,520,842 parameters for 10 classes at 32x32, 25,138,952 for 200 at 64x64."""
    channels, height, width = image_shape
    grid = 1 + (min(height, width) >= _GRID_FROM)
    widths = (64, 128, 256, 512)
    return ResNet((3, 4, 6, 3), bottleneck=True, widths=widths, n_classes=n_classes, channels=channels, grid=grid)


class Tiny(nn.Module):
    """Three 3x3 convolutions with batch normalisation, one halving of the resolution, one linear layer.

    It takes images of at least 4 pixels per side. On a CPU it trains in seconds and gets more than 97 % of the digits
    right.
    """

    def __init__(self, *, n_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        current = image_shape[0]
        for width, stride in ((24, 1), (48, 2), (64, 1)):
            layers += [_conv(current, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            current = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(current * _TINY_GRID * _TINY_GRID, n_classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(N, K)` of normalised images `(N, C, H, W)`."""
        logits: Tensor = self.head(pool(self.features(images), _TINY_GRID))
        return logits


def pool(features: Tensor, grid: int) -> Tensor:
    """Average `(N, C, H, W)` over `grid x grid` cells and flatten to `(N, C * grid * grid)`.

    A plain mean if the cells are equal: unlike adaptive pooling its backward pass is deterministic on a GPU.
    """
    if grid == 1:
        return features.mean(dim=(2, 3))
    height, width = features.shape[2:]
    if height % grid or width % grid:
        return functional.adaptive_avg_pool2d(features, grid).flatten(1)
    return functional.avg_pool2d(features, (height // grid, width // grid)).flatten(1)


def initialise(model: nn.Module) -> None:
    """He initialisation (normal, fan-out) of every convolution; draws from torch's current generator."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _conv(channels_in: int, channels_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    # No bias: the batch normalisation that follows would take it away again.
    return nn.Conv2d(channels_in, channels_out, size, stride=stride, padding=size // 2, bias=False)
