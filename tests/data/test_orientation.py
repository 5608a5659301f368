"""What is said of images that are turned by their EXIF orientation."""

from paucal.data.decode import ambiguity_note


def test_the_note__counts_images_and_names_some():
    one, many = ambiguity_note(["a.jpg"], "boxes"), ambiguity_note([f"{n}.jpg" for n in range(9)], "masks")
    assert one.startswith("1 image is rotated by its EXIF tag (a.jpg), and the size does not show whether the boxes ")
    assert many.startswith("9 images are rotated by their EXIF tags (0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg, ...), and ")
