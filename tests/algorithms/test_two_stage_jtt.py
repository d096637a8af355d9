"""JTT: who is drawn more often, when, and what the stages train."""

import pytest
import torch

from stablenet.algorithms import build_algorithm
from stablenet.algorithms.two_stage import Outputs, read_outputs
from stablenet.data.loader import BatchSettings, order_epoch
from stablenet.errors import UserError
from stablenet.models import build_network
from tests.algorithms.biased import SAMPLES, draw, train
from tests.algorithms.test_domains import make_context
from tests.algorithms.test_methods import AllBatches, make, make_batch
from tests.engine.tiny import tiny_run


def make_jtt(epochs=10, **parameters):
    network = build_network("paper-cnn", 3, parameters={"image_size": 32})
    return build_algorithm("jtt", parameters, network, make_context((0,), epochs=epochs, num_samples=24))


def test_mistakes_are_drawn_more_often():
    algorithm = make_jtt(upsampling=7.0)
    assert algorithm.sampling_weights() is None
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.1, 0.2]])
    told = algorithm.look(Outputs(torch.tensor([5, 0, 7]), torch.tensor([0, 2, 2]), logits))
    algorithm.second.fill_(True)
    expected = torch.ones(24)
    expected[0] = 7.0
    assert torch.equal(algorithm.sampling_weights(), expected)
    torch.testing.assert_close(algorithm.sample_columns()["weight"], expected * 24 / 30)
    assert told["mistakes"] == pytest.approx(1 / 3)


def test_the_stages_train_one_network_each():
    algorithm = make_jtt(epochs=10, share=0.15).train()
    assert algorithm.first_epochs == 2
    for epoch, second in ((0, False), (1, False), (2, True)):
        algorithm.start_epoch(epoch, AllBatches())
        algorithm.zero_grad()
        algorithm.loss(make_batch()).per_sample_loss.mean().backward()
        assert algorithm.trains_predictor() == second
        assert all((p.grad is not None) == second for p in algorithm.network.parameters())
        assert all((p.grad is None) == second for p in algorithm.first.parameters())


def test_the_second_network_starts_where_the_first_did():
    algorithm = make_jtt()
    for one, two in zip(algorithm.first.parameters(), algorithm.network.parameters(), strict=True):
        assert torch.equal(one, two)
        assert one is not two


@pytest.mark.parametrize("parameters", [{"share": 0.0}, {"upsampling": 1.0}])
def test_without_its_strength_it_is_erm(parameters):
    epochs = 2 if parameters.get("share") == 0 else 3
    algorithm, erm = train("jtt", parameters, epochs=epochs), train("erm", epochs=2)
    if "share" in parameters:
        for one, two in zip(algorithm.network.parameters(), erm.network.parameters(), strict=True):
            assert torch.equal(one, two)
    else:
        assert (algorithm.sampling_weights() == 1).all()
        order = order_epoch(torch.zeros(SAMPLES), 1, BatchSettings(batch_size=25), algorithm.sampling_weights())
        assert order.position.sort().values.tolist() == list(range(SAMPLES))


def test_outputs_are_those_of_the_network_at_rest():
    algorithm, samples = train("erm", epochs=1), draw(100, 0.9, 3)
    outputs = read_outputs(algorithm.network, samples)
    assert torch.equal(outputs.y, samples.y)
    assert algorithm.network.training
    torch.testing.assert_close(outputs.logits, algorithm.network.eval()(samples.x))


@pytest.mark.parametrize("method", ["jtt", "spare", "known-contexts"])
def test_balanced_domains_are_refused_before_training(tmp_path, method):
    parameters = ["method.parameters.by=sampling"] if method == "known-contexts" else []
    with pytest.raises(UserError, match=rf"{method} chooses how often .* set train\.balance_domains=false"):
        tiny_run(tmp_path / "run", method, "train.balance_domains=true", *parameters)
    assert not (tmp_path / "run").exists()


def test_a_run_of_one_epoch_is_erm():
    algorithm, erm, batch = make("jtt").eval(), make("erm").eval(), make_batch()
    assert algorithm.start_epoch(0, AllBatches()) == {}
    assert algorithm.sampling_weights() is None
    assert torch.equal(algorithm.loss(batch).per_sample_loss, erm.loss(batch).per_sample_loss)


@pytest.mark.parametrize("method", ["jtt", "spare", "eiil"])
def test_a_first_network_that_has_diverged_is_refused(method):
    algorithm, samples = train(method, epochs=1), draw(SAMPLES, 0.9, 3)
    with torch.no_grad():
        algorithm.first.head.bias[0] = float("nan")
    algorithm.first_epochs = 1
    with pytest.raises(UserError, match=r"outputs are not finite: lower train\.learning_rate"):
        algorithm.start_epoch(1, samples)
