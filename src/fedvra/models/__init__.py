"""Models by name, one small file each: plain ``nn.Module`` code, made to the shape of the data.

| name       | layers                                                              | parameters         |
|------------|---------------------------------------------------------------------|--------------------|
| mlp        | fc 200, fc 200, fc K                                                | 199,210 (MNIST)    |
| cnn        | conv5x5 32, pool, conv5x5 64, pool, fc 512, fc K                    | 878,538 (CIFAR-10) |
| cnn-feddyn | conv5x5 64, pool, conv5x5 64, pool, fc 384, fc 192, fc K            | 797,962 (CIFAR-10) |
| lstm       | embedding 8, LSTM 128, fc K (reads symbols, says the next)          | 83,945 (pydoc)     |
| resnet18-gn| conv3x3 64, 4 x 2 residual blocks 64..512, GroupNorm, mean, fc K    | 11,173,962         |
| linear     | fc K                                                                | 7,850 (MNIST)      |

A file added to this folder, or an entry point of the group ``fedvra.models`` in another distribution, is known to
``--model`` by the name it registers. From Python any ``nn.Module`` will do: ``fv.Supervised(model)``.

Imports core.
"""

from fedvra.models.base import MODELS, MakeModel, register

__all__ = ["MODELS", "MakeModel", "register"]
