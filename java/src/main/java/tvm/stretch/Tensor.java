package tvm.stretch;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** An input or output of a model. */
public final class Tensor {
  private final String name;
  private final String type;
  private final long[] shape;
  private final long bytes;

  Tensor(String name, String type, long[] shape, long bytes) {
    this.name = name;
    this.type = type;
    this.shape = shape;
    this.bytes = bytes;
  }

  public String name() {
    return name;
  }

  /** As NumPy writes it: {@code float32}, {@code int8}. */
  public String type() {
    return type;
  }

  public long[] shape() {
    return shape.clone();
  }

  public long bytes() {
    return bytes;
  }

  /** New memory for this tensor, in the byte order of this machine. Runs use it without a copy. */
  public ByteBuffer newBuffer() {
    // Kernels load whole vector registers, so the memory has to begin at a multiple of 64. An
    // aligned slice ends at one, too.
    ByteBuffer memory = ByteBuffer.allocateDirect(Math.toIntExact((bytes + 63) / 64 * 64 + 63));
    ByteBuffer aligned = memory.alignedSlice(64);
    aligned.limit(Math.toIntExact(bytes));
    return aligned.slice().order(ByteOrder.nativeOrder());
  }

  @Override
  public String toString() {
    StringBuilder text = new StringBuilder(name).append(": ").append(type).append('[');
    for (int i = 0; i < shape.length; ++i) text.append(i == 0 ? "" : ", ").append(shape[i]);
    return text.append(']').toString();
  }
}
