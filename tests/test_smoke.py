from diffusionner.training.trainer import train
def test_s(tiny_settings):
    print(train(tiny_settings))
