import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from calibrant.training.predict import predict
from calibrant.training.run_data import HeldOut


class Plain(Dataset):
    """The same items without being a TensorDataset."""

    def __init__(self, *tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)


def test_logits_and_labels_come_in_order_whatever_the_items_are():
    images, labels = torch.randn(2345, 4), torch.arange(2345) % 7
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9))
    network.train()
    for items in (TensorDataset(images, labels), Plain(images, labels)):
        batches = HeldOut(items, [str(row) for row in range(2345)]).batches(100)
        logits, found = predict(network, batches, lambda part: part * 2, device=torch.device("cpu"))
        torch.testing.assert_close(logits, network[0](images * 2).detach())
        assert torch.equal(found, labels)
        assert not logits.requires_grad
    assert network.training


def test_low_precision_is_widened_and_float64_kept():
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        network = nn.Linear(2, 3).to(dtype)
        batches = [(torch.ones(1, 2, dtype=dtype), torch.zeros(1))]
        assert predict(network, batches, lambda part: part, device=torch.device("cpu"))[0].dtype == expected
