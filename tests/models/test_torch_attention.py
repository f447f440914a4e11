import pytest

torch = pytest.importorskip("torch")

from crossknn.models.torch_attention import without_cudnn_attention  # noqa: E402

kernels = torch.backends.cuda


@pytest.fixture(autouse=True)
def with_cudnn():
    before = kernels.cudnn_sdp_enabled()
    kernels.enable_cudnn_sdp(True)
    yield
    kernels.enable_cudnn_sdp(before)


def test_cudnn_attention_is_disabled_on_a_gpu():
    with without_cudnn_attention(torch.device("cuda")):
        assert not kernels.cudnn_sdp_enabled()
        assert kernels.mem_efficient_sdp_enabled()
    assert kernels.cudnn_sdp_enabled()


def test_an_error_restores_it():
    with pytest.raises(ValueError, match="broken"), without_cudnn_attention(torch.device("cuda")):
        raise ValueError("broken")
    assert kernels.cudnn_sdp_enabled()


def test_it_stays_off_if_the_user_disabled_it():
    kernels.enable_cudnn_sdp(False)
    with without_cudnn_attention(torch.device("cuda")):
        pass
    assert not kernels.cudnn_sdp_enabled()


def test_on_a_cpu_nothing_changes():
    with without_cudnn_attention(torch.device("cpu")):
        assert kernels.cudnn_sdp_enabled()


def test_the_last_of_several_users_enables_it_again():
    one, other = (without_cudnn_attention(torch.device("cuda")) for _ in range(2))
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert not kernels.cudnn_sdp_enabled()
    other.__exit__(None, None, None)
    assert kernels.cudnn_sdp_enabled()
