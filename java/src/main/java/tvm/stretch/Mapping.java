package tvm.stretch;

import java.nio.ByteBuffer;

/**
 * Memory of a camera, a GPU or another process, for inputs and outputs of runs: without a copy where
 * its rows follow each other without gaps.
 *
 * <pre>{@code
 * try (Mapping frame = Mapping.of(hardwareBuffer)) {
 *   model.run(List.of(frame.begin(Mapping.READ)), List.of(scores));
 *   frame.end();
 * }
 * }</pre>
 *
 * Only one thread at a time may use a mapping. After {@link #end} and {@link #close}, nothing may
 * read or write the buffer of {@link #begin}.
 */
public final class Mapping implements AutoCloseable {
  /** Runs read the memory. */
  public static final int READ = 1;

  /** Runs write to the memory. */
  public static final int WRITE = 2;

  static {
    System.loadLibrary("tvm_stretch_jni");
  }

  private long handle; // 0 after close()

  private Mapping(long handle) {
    this.handle = handle;
  }

  /**
   * Maps a descriptor of a dma-buf or of other memory, which may be closed afterwards.
   *
   * @param offset of the first row
   * @param rows their number; 1 for what is no image
   * @param rowBytes of each row
   * @param stride bytes from one row to the next
   */
  public static Mapping of(int descriptor, long offset, long rows, long rowBytes, long stride) {
    return new Mapping(map(descriptor, offset, rows, rowBytes, stride));
  }

  /** Maps an {@code android.hardware.HardwareBuffer} of bytes or of RGB, RGBA or float16 pixels. */
  public static Mapping of(Object hardwareBuffer) {
    return new Mapping(mapHardwareBuffer(hardwareBuffer));
  }

  /**
   * The memory, until {@link #end}; what a device wrote before is seen.
   *
   * @param access {@link #READ}, {@link #WRITE} or both
   */
  public ByteBuffer begin(int access) {
    return begin(open(), access);
  }

  /** Lets devices see what runs wrote. */
  public void end() {
    end(open());
  }

  @Override
  public void close() {
    if (handle != 0) unmap(handle);
    handle = 0;
  }

  private long open() {
    if (handle != 0) return handle;
    throw new IllegalStateException("expected an open mapping, got a closed one; map it again");
  }

  // src/main/cpp/tvm_stretch_jni.cc

  private static native long map(
      int descriptor, long offset, long rows, long rowBytes, long stride);

  private static native long mapHardwareBuffer(Object hardwareBuffer);

  private static native ByteBuffer begin(long mapping, int access);

  private static native void end(long mapping);

  private static native void unmap(long mapping);
}
