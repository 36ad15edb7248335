"""Fashion-MNIST: 70,000 articles of clothing of 28 x 28 grey pixels (Xiao, Rasul and Vollgraf, 2017)."""

from __future__ import annotations

from pathlib import Path

from fedvra.data.sources.idx import mnist_like_files, read_mnist_like
from fedvra.data.sources.routes import DebianPackage, Folder, Mirror
from fedvra.data.sources.source import SOURCES, Source

IN_DEBIAN = "usr/share/datasets/fashion-mnist"

SOURCES.add(
    "fashion-mnist",
    Source(
        name="fashion-mnist",
        description="70,000 articles of clothing, 28 x 28 grey, 10 classes",
        read=read_mnist_like,
        classes=(
            "T-shirt",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        files=mnist_like_files(
            train_images="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            train_labels="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            test_images="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            test_labels="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        layouts=("FashionMNIST/raw",),
        routes=(
            Folder(Path("/") / IN_DEBIAN),
            Mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets"),
            Mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"),
            DebianPackage("dataset-fashion-mnist", IN_DEBIAN),
        ),
        transform={"mean": (0.2860,), "std": (0.3530,)},
    ),
)
