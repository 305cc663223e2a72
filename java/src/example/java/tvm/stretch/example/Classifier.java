package tvm.stretch.example;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.file.Path;
import java.util.List;
import tvm.stretch.Model;

/** Classifies pictures, as frames of a camera come: 32-bit pixels, any size. */
public final class Classifier implements AutoCloseable {
  private static final float[] MEAN = {0.485f, 0.456f, 0.406f};
  private static final float[] DEVIATION = {0.229f, 0.224f, 0.225f};

  private final Model model;
  private final ByteBuffer input;
  private final ByteBuffer output;
  private final int height;
  private final int width;

  public Classifier(Path artifact) {
    model = Model.load(artifact);
    long[] shape = model.inputs().get(0).shape();
    height = Math.toIntExact(shape[2]);
    width = Math.toIntExact(shape[3]);
    input = model.inputs().get(0).newBuffer();
    output = model.outputs().get(0).newBuffer();
  }

  /**
   * The class with the highest score.
   *
   * @param pixels rows of 0xAARRGGBB, as Android's {@code Bitmap.getPixels} and {@code
   *     BufferedImage.getRGB} give them.
   */
  public int classify(int[] pixels, int pictureWidth, int pictureHeight) {
    normalise(pixels, pictureWidth, pictureHeight);
    model.run(List.of(input), List.of(output));
    FloatBuffer scores = output.asFloatBuffer();
    int best = 0;
    for (int i = 1; i < scores.limit(); ++i) {
      if (scores.get(i) > scores.get(best)) best = i;
    }
    return best;
  }

  /** The nearest pixel for each place of the input, channels first. */
  private void normalise(int[] pixels, int pictureWidth, int pictureHeight) {
    FloatBuffer values = input.asFloatBuffer();
    for (int y = 0; y < height; ++y) {
      int row = y * pictureHeight / height * pictureWidth;
      for (int x = 0; x < width; ++x) {
        int pixel = pixels[row + x * pictureWidth / width];
        for (int channel = 0; channel < 3; ++channel) {
          float value = (pixel >> (16 - 8 * channel) & 0xff) / 255f;
          int place = (channel * height + y) * width + x;
          values.put(place, (value - MEAN[channel]) / DEVIATION[channel]);
        }
      }
    }
  }

  @Override
  public void close() {
    model.close();
  }
}
