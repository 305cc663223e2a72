package tvm.stretch.example;

import java.awt.image.BufferedImage;
import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import javax.imageio.ImageIO;

/** {@code ClassifyFiles MODEL.so PICTURE.png ..}: the same on a desktop, with files for a camera. */
public final class ClassifyFiles {
  private ClassifyFiles() {}

  public static void main(String[] words) throws IOException {
    try (Classifier classifier = new Classifier(Path.of(words[0]))) {
      for (int i = 1; i < words.length; ++i) {
        BufferedImage picture = ImageIO.read(new File(words[i]));
        int width = picture.getWidth();
        int height = picture.getHeight();
        int[] pixels = picture.getRGB(0, 0, width, height, null, 0, width);
        System.out.println(words[i] + ": class " + classifier.classify(pixels, width, height));
      }
    }
  }
}
