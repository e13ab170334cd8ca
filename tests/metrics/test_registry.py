import pytest

from seedbed.errors import ConfigError
from seedbed.metrics import registry


def test_every_metric_says_what_it_is() -> None:
    for metric in registry.registered():
        assert metric.name == metric.name.lower()
        assert metric.unit
        assert metric.sentence.endswith(".")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown metric 'mean_retrun': did you mean .*mean_return"):
        registry.find("mean_retrun")


def test_a_family_takes_any_name_of_its_prefix() -> None:
    assert registry.find("loss/kl").name == "loss/*"
    assert registry.find("loss/entropy").unit == "nats"


@pytest.mark.parametrize("name", ["loss/", "loss/*", "loss", "/", "", "lost/entropy"])
def test_the_family_itself_is_no_name(name: str) -> None:
    with pytest.raises(ConfigError):
        registry.find(name)


def test_registering_again_must_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_metrics", dict(registry._metrics))
    first = registry.register("apples", "apples", "Apples that fell.")
    assert registry.register("apples", "apples", "Apples that fell.") == first
    with pytest.raises(ConfigError, match="registered already"):
        registry.register("apples", "kg", "Apples that fell.")
