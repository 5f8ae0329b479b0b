"""A page in the browser that shows the denoising."""
