package tvm.stretch;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.LongPredicate;

/**
 * A network that {@code Model.export} of tvm_stretch wrote.
 *
 * <pre>{@code
 * try (Model model = Model.load(Path.of("resnet18.so"))) {
 *   ByteBuffer pixels = model.inputs().get(0).newBuffer();
 *   ByteBuffer scores = model.outputs().get(0).newBuffer();
 *   model.run(List.of(pixels), List.of(scores));
 * }
 * }</pre>
 *
 * Any thread may call any method. Calls for one model wait for each other, except {@link #cancel};
 * models of {@link #copy} share kernels and weights, and run at the same time.
 */
public final class Model implements AutoCloseable {
  static {
    System.loadLibrary("tvm_stretch_jni");
  }

  // Calls hold the first lock, so that close() cannot free the model under them.
  private final ReadWriteLock life = new ReentrantReadWriteLock();
  private volatile List<Tensor> inputs; // of the length in use
  private volatile List<Tensor> outputs;
  private long handle; // 0 after close()

  private Model(long handle) {
    this.handle = handle;
    this.inputs = describe(handle, true);
    this.outputs = describe(handle, false);
  }

  /** Opens an artifact. The file must not change until the model and its copies are closed. */
  public static Model load(Path path) {
    return new Model(loadFile(path.toString()));
  }

  /**
   * Opens kernels that were exported without their network, and the network: a file without
   * programs, which may have come later than the app. The caller checks where it comes from.
   */
  public static Model load(Path kernels, Path data) {
    return new Model(loadWithData(kernels.toString(), data.toString()));
  }

  /** Opens an artifact that is a part of an open file, as Android's assets are. */
  public static Model load(int descriptor, long offset, long bytes) {
    return new Model(loadDescriptor(descriptor, offset, bytes));
  }

  /** A model with the same kernels and weights and its own scratch memory. */
  public Model copy() {
    return new Model(call(Model::cloneModel));
  }

  public List<Tensor> inputs() {
    return inputs;
  }

  public List<Tensor> outputs() {
    return outputs;
  }

  /**
   * Runs once: reads all inputs, writes all outputs.
   *
   * @param inputs direct buffers, in the order of {@link #inputs}; from their first byte on,
   *     whatever their position is.
   * @param outputs the same for {@link #outputs}.
   */
  public void run(List<ByteBuffer> inputs, List<ByteBuffer> outputs) {
    ByteBuffer[] read = array(inputs);
    ByteBuffer[] written = array(outputs);
    call(
        model -> {
          run(model, read, written);
          return 0L;
        });
  }

  /**
   * Begins a run. While it is in progress, another asynchronous run of this model is refused.
   *
   * @return done when the run is over, on a thread of the model. Cancelling the future does not
   *     stop the run: {@link #cancel} does.
   */
  public CompletableFuture<Void> runAsync(List<ByteBuffer> inputs, List<ByteBuffer> outputs) {
    Pending pending = new Pending(array(inputs), array(outputs));
    call(
        model -> {
          runAsync(model, pending.inputs, pending.outputs, pending);
          return 0L;
        });
    return pending.over;
  }

  /** Stops the run in progress, if there is one: it fails with {@code CANCELLED}. */
  public void cancel() {
    call(
        model -> {
          cancel(model);
          return 0L;
        });
  }

  /** The names of the plans in the artifact. */
  public List<String> plans() {
    List<String> names = new ArrayList<>();
    call(
        model -> {
          Collections.addAll(names, plans(model));
          return 0L;
        });
    return Collections.unmodifiableList(names);
  }

  /** All runs use this plan. */
  public void usePlan(int number) {
    call(
        model -> {
          usePlan(model, number);
          return 0L;
        });
  }

  /** Each run uses the plan that is fastest at present. */
  public void adapt() {
    call(
        model -> {
          adapt(model);
          return 0L;
        });
  }

  /**
   * The lengths that the network was compiled for, as {@code n=64}; one empty name if there is only
   * one.
   */
  public List<String> lengths() {
    List<String> names = new ArrayList<>();
    call(
        model -> {
          Collections.addAll(names, lengths(model));
          return 0L;
        });
    return Collections.unmodifiableList(names);
  }

  /** Runs from now on have this length, and {@link #inputs} and {@link #outputs} describe it. */
  public void useLength(int number) {
    call(
        model -> {
          useLength(model, number);
          inputs = describe(model, true);
          outputs = describe(model, false);
          return 0L;
        });
  }

  /**
   * Runs from now on have this size of a named dimension, which {@link #inputs} and {@link #outputs}
   * describe. A size between the lengths is padded, if the network was compiled for any size.
   */
  public void useSize(String name, long size) {
    call(
        model -> {
          useSize(model, name, size);
          inputs = describe(model, true);
          outputs = describe(model, false);
          return 0L;
        });
  }

  /** Sets all states to zero. */
  public void reset() {
    call(
        model -> {
          reset(model);
          return 0L;
        });
  }

  /**
   * For a model whose tokens are a state that {@code ts.Greedy} or {@code ts.Sample} chooses: reads
   * a prompt, or goes on after the last call if it is empty, and chooses tokens.
   *
   * @param most the largest number of tokens to choose.
   * @param goOn is asked about each token; it must not use the model, except {@link #cancel}.
   */
  public void generate(long[] tokens, long most, LongPredicate goOn) {
    long[] prompt = tokens.clone();
    Objects.requireNonNull(goOn);
    call(
        model -> {
          generate(model, prompt, most, goOn);
          return 0L;
        });
  }

  /** How tokens of a {@code ts.Sample} are drawn from now on; {@code docs/states.md}. */
  public void setSampling(double temperature, long topK, double topP, double minP, long seed) {
    call(
        model -> {
          setSampling(model, temperature, topK, topP, minP, seed);
          return 0L;
        });
  }

  /** As {@link #copy}, with the present states: a prefix is read once, and continued several times. */
  public Model fork() {
    return new Model(call(Model::forkModel));
  }

  /** JSON, as {@code tvm_stretch_statistics} describes it. */
  public String statistics() {
    String[] text = new String[1];
    call(
        model -> {
          text[0] = statistics(model);
          return 0L;
        });
    return text[0];
  }

  /** Cancels a run in progress, waits for it, and frees the model. */
  @Override
  public void close() {
    // A run holds the first lock, so it is cancelled before.
    Lock reading = life.readLock();
    reading.lock();
    try {
      if (handle != 0) cancel(handle);
    } finally {
      reading.unlock();
    }
    long freed;
    Lock writing = life.writeLock();
    writing.lock();
    try {
      freed = handle;
      handle = 0;
    } finally {
      writing.unlock();
    }
    if (freed != 0) free(freed);
  }

  /** An asynchronous run: the native side keeps it, and with it the buffers. */
  private static final class Pending {
    final ByteBuffer[] inputs;
    final ByteBuffer[] outputs;
    final CompletableFuture<Void> over = new CompletableFuture<>();

    Pending(ByteBuffer[] inputs, ByteBuffer[] outputs) {
      this.inputs = inputs;
      this.outputs = outputs;
    }

    /** Called by the native side. */
    void finish(int status, String error) {
      if (status == 0) {
        over.complete(null);
      } else {
        over.completeExceptionally(new StretchException(status, error));
      }
    }
  }

  private interface Call {
    long with(long model);
  }

  private long call(Call call) {
    Lock reading = life.readLock();
    reading.lock();
    try {
      if (handle == 0) {
        throw new IllegalStateException("expected an open model, got a closed one; load it again");
      }
      return call.with(handle);
    } finally {
      reading.unlock();
    }
  }

  private static ByteBuffer[] array(List<ByteBuffer> buffers) {
    return buffers.toArray(new ByteBuffer[0]);
  }

  private static List<Tensor> describe(long model, boolean ofInputs) {
    List<Tensor> found = new ArrayList<>();
    for (int i = 0; i < count(model, ofInputs); ++i) found.add(tensor(model, ofInputs, i));
    return Collections.unmodifiableList(found);
  }

  // src/main/cpp/tvm_stretch_jni.cc

  private static native long loadFile(String path);

  private static native long loadWithData(String kernels, String data);

  private static native long loadDescriptor(int descriptor, long offset, long bytes);

  private static native long cloneModel(long model);

  private static native void free(long model);

  private static native int count(long model, boolean ofInputs);

  private static native Tensor tensor(long model, boolean ofInputs, int number);

  private static native void run(long model, ByteBuffer[] inputs, ByteBuffer[] outputs);

  private static native void runAsync(
      long model, ByteBuffer[] inputs, ByteBuffer[] outputs, Pending pending);

  private static native void cancel(long model);

  private static native String[] plans(long model);

  private static native void usePlan(long model, int number);

  private static native void adapt(long model);

  private static native String[] lengths(long model);

  private static native void useLength(long model, int number);

  private static native void useSize(long model, String name, long size);

  private static native void reset(long model);

  private static native void generate(long model, long[] tokens, long most, LongPredicate goOn);

  private static native void setSampling(
      long model, double temperature, long topK, double topP, double minP, long seed);

  private static native long forkModel(long model);

  private static native String statistics(long model);
}
