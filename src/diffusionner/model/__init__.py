"""The denoising network f_θ(x_t, S, t): sentence encoder, initializer and entity decoder."""
