package tvm.stretch;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.stream.Stream;

/** {@code ModelTest MODEL INPUT OUTPUT [KERNELS DATA [LENGTHS]]}: test_java.py runs it. */
public final class ModelTest {
  private static Path artifact;
  private static ByteBuffer input;
  private static byte[] expected;

  private ModelTest() {}

  public static void main(String[] words) throws Exception {
    artifact = Path.of(words[0]);
    try (Model model = Model.load(artifact)) {
      input = model.inputs().get(0).newBuffer();
      input.put(Files.readAllBytes(Path.of(words[1])));
      expected = Files.readAllBytes(Path.of(words[2]));
      describes(model);
      runs(model);
      mapped(model, Path.of(words[1]));
      if (words.length > 3) fromData(Path.of(words[3]), Path.of(words[4]));
      if (words.length > 5) lengths(Path.of(words[5]));
      if (words.length > 6) tokens(Path.of(words[6]));
      chains(model);
      copies(model);
      mistakes(model);
      System.out.println("call " + nanosecondsOfACall(model));
    }
    cancels();
    closedModelsRefuse();
    System.out.println("all passed");
  }

  private static void require(boolean condition, String what) {
    if (!condition) throw new AssertionError(what);
  }

  private interface Action {
    void run() throws Exception;
  }

  private static void fails(StretchException.Status status, String text, Action action)
      throws Exception {
    try {
      action.run();
    } catch (StretchException error) {
      require(error.status() == status, status + " for: " + error.getMessage());
      require(error.getMessage().contains(text), text + " in: " + error.getMessage());
      return;
    }
    throw new AssertionError("expected an error that says " + text);
  }

  private static ByteBuffer output(Model model) {
    return model.outputs().get(0).newBuffer();
  }

  private static void compare(ByteBuffer output) {
    require(output.duplicate().rewind().equals(ByteBuffer.wrap(expected)), "the answer");
  }

  /** The input's file as memory of others, and refusals. */
  private static void mapped(Model model, Path file) throws Exception {
    ByteBuffer output = output(model);
    Mapping closed;
    try (RandomAccessFile open = new RandomAccessFile(file.toFile(), "r")) {
      int descriptor = descriptorOf(file);
      long bytes = open.length();
      try (Mapping mapping = Mapping.of(descriptor, 0, 1, bytes, bytes)) {
        model.run(List.of(mapping.begin(Mapping.READ)), List.of(output));
        compare(output);
        fails(StretchException.Status.INVALID, "end its use", () -> mapping.begin(Mapping.READ));
        mapping.end();
        fails(
            StretchException.Status.INVALID, "for reading", () -> mapping.begin(Mapping.WRITE));
        fails(StretchException.Status.INVALID, "in use", mapping::end);
      }
      fails(
          StretchException.Status.INVALID,
          "a stride is at least a row",
          () -> Mapping.of(descriptor, 0, -1, bytes, bytes));
      closed = Mapping.of(descriptor, 0, 1, bytes, bytes);
      closed.close();
    }
    fails(StretchException.Status.INVALID, "Android 8", () -> Mapping.of(new Object()));
    closed.close();
    try {
      closed.end();
      throw new AssertionError("a closed mapping");
    } catch (IllegalStateException error) {
      require(error.getMessage().contains("map it again"), error.getMessage());
    }
  }

  /** The number of a descriptor of this process that has a file open. */
  private static int descriptorOf(Path file) throws IOException {
    try (Stream<Path> links = Files.list(Path.of("/proc/self/fd"))) {
      for (Path link : (Iterable<Path>) links::iterator) {
        if (Files.isSymbolicLink(link) && Files.readSymbolicLink(link).equals(file.toRealPath())) {
          return Integer.parseInt(link.getFileName().toString());
        }
      }
    }
    throw new AssertionError("expected " + file + " to be open");
  }

  private static void describes(Model model) {
    Tensor tensor = model.inputs().get(0);
    long elements = 1;
    for (long extent : tensor.shape()) elements *= extent;
    require(tensor.type().equals("float32") && tensor.bytes() == 4 * elements, tensor.toString());
    require(model.plans().size() == 1, "plans");
    require(model.statistics().contains("\"runs\""), "statistics");
    model.usePlan(0);
    model.adapt();
  }

  /** The same network, kernels and data apart. */
  private static void fromData(Path kernels, Path data) throws Exception {
    try (Model model = Model.load(kernels, data)) {
      runs(model);
      model.reset();
    }
    fails(
        StretchException.Status.BAD_ARTIFACT, "expected", () -> Model.load(kernels, kernels));
  }

  /** Its best next token is the one after the last token, of 20. */
  private static void tokens(Path path) throws Exception {
    try (Model model = Model.load(path)) {
      List<Long> found = new ArrayList<>();
      model.generate(new long[] {1, 5, 3}, 4, found::add);
      require(found.equals(List.of(4L, 5L, 6L, 7L)), found.toString());
      try (Model fork = model.fork()) {
        found.clear();
        fork.generate(new long[0], 9, token -> found.add(token) && token != 9);
        require(found.equals(List.of(8L, 9L)), found.toString());
      }
      fails(
          StretchException.Status.BAD_VALUES,
          "got 20",
          () -> model.generate(new long[] {20}, 1, token -> true));
      fails(
          StretchException.Status.INVALID,
          "temperature",
          () -> model.setSampling(-1, 0, 1, 0, 0));
      model.setSampling(1e6, 0, 1, 0, 7);
      found.clear();
      model.generate(new long[] {3}, 50, found::add);
      require(found.size() == 50 && !found.subList(0, 3).equals(List.of(4L, 5L, 6L)), "draws");
      boolean thrown = false;
      try {
        model.generate(
            new long[] {3},
            5,
            token -> {
              throw new IllegalStateException("enough");
            });
      } catch (IllegalStateException expected) {
        thrown = true;
      }
      require(thrown, "an exception of the predicate");
    }
  }

  /** Its lengths are 3 and 5, and 4 is padded; it adds 1 to each of its float32. */
  private static void lengths(Path path) throws Exception {
    try (Model model = Model.load(path)) {
      require(model.lengths().equals(List.of("n=3", "n=5")), model.lengths().toString());
      for (int number : new int[] {1, 0, 1}) {
        model.useLength(number);
        long count = number == 0 ? 3 : 5;
        require(model.inputs().get(0).bytes() == 4 * count, "bytes of a length");
        ByteBuffer read = model.inputs().get(0).newBuffer();
        ByteBuffer written = output(model);
        for (int i = 0; i < count; ++i) read.putFloat(4 * i, i);
        model.run(List.of(read), List.of(written));
        for (int i = 0; i < count; ++i) require(written.getFloat(4 * i) == i + 1, "an answer");
      }
      for (int count : new int[] {4, 3, 5, 4}) {
        model.useSize("n", count);
        require(model.outputs().get(0).bytes() == 4 * count, "bytes of a size");
        ByteBuffer read = model.inputs().get(0).newBuffer();
        ByteBuffer written = output(model);
        for (int i = 0; i < count; ++i) read.putFloat(4 * i, i);
        model.run(List.of(read), List.of(written));
        for (int i = 0; i < count; ++i) require(written.getFloat(4 * i) == i + 1, "an answer");
      }
      fails(StretchException.Status.INVALID, "sizes of one", () -> model.useSize("n", 6));
      fails(StretchException.Status.INVALID, "dimensions", () -> model.useSize("m", 3));
      fails(StretchException.Status.INVALID, "expected", () -> model.useLength(2));
      fails(StretchException.Status.INVALID, "expected", () -> model.useLength(-1));
    }
  }

  private static void runs(Model model) {
    ByteBuffer output = output(model);
    model.run(List.of(input), List.of(output));
    compare(output);
  }

  /** Each run begins when the one before is over, on the model's thread. */
  private static void chains(Model model) {
    ByteBuffer output = output(model);
    CompletableFuture<Void> last = model.runAsync(List.of(input), List.of(output));
    for (int i = 0; i < 20; ++i) {
      last = last.thenCompose(nothing -> model.runAsync(List.of(input), List.of(output)));
    }
    last.join();
    compare(output);
  }

  private static void copies(Model model) throws InterruptedException {
    Thread[] threads = new Thread[4];
    boolean[] passed = new boolean[threads.length];
    for (int i = 0; i < threads.length; ++i) {
      int number = i;
      threads[i] =
          new Thread(
              () -> {
                try (Model copy = model.copy()) {
                  for (int run = 0; run < 20; ++run) runs(copy);
                  passed[number] = true;
                }
              });
      threads[i].start();
    }
    for (Thread thread : threads) thread.join();
    for (boolean one : passed) require(one, "a copy on a thread of its own");
  }

  private static void mistakes(Model model) throws Exception {
    ByteBuffer output = output(model);
    ByteBuffer small = ByteBuffer.allocateDirect(8);
    fails(
        StretchException.Status.INVALID,
        "bytes for the input",
        () -> model.run(List.of(small), List.of(output)));
    fails(
        StretchException.Status.INVALID,
        "buffers for the model's outputs",
        () -> model.run(List.of(input), List.of()));
    fails(
        StretchException.Status.INVALID,
        "direct buffers",
        () -> model.run(List.of(ByteBuffer.allocate(expected.length)), List.of(output)));
    fails(StretchException.Status.INVALID, "use_plan", () -> model.usePlan(-1));
    fails(
        StretchException.Status.BAD_ARTIFACT,
        "cannot be opened",
        () -> Model.load(Path.of("/nowhere.so")));
    fails(StretchException.Status.BAD_ARTIFACT, "not open", () -> Model.load(-1, 0, 1));
    Path damaged = Files.createTempFile("damaged", ".so");
    byte[] bytes = Files.readAllBytes(artifact);
    bytes[bytes.length / 2] ^= 1;
    Files.write(damaged, bytes);
    fails(StretchException.Status.BAD_ARTIFACT, "damaged", () -> Model.load(damaged));
    Files.delete(damaged);
  }

  private static long nanosecondsOfACall(Model model) {
    List<ByteBuffer> inputs = List.of(input);
    List<ByteBuffer> outputs = List.of(output(model));
    long[] times = new long[20_000];
    for (int i = 0; i < times.length; ++i) {
      long start = System.nanoTime();
      model.run(inputs, outputs);
      times[i] = System.nanoTime() - start;
    }
    java.util.Arrays.sort(times);
    return times[times.length / 2];
  }

  /** Closing cancels; the future always ends, and nothing crashes. */
  private static void cancels() throws InterruptedException {
    int cancelled = 0;
    for (int i = 0; i < 40; ++i) {
      CompletableFuture<Void> over;
      try (Model model = Model.load(artifact)) {
        over = model.runAsync(List.of(input), List.of(output(model)));
        if (i % 2 == 0) model.cancel();
      }
      try {
        over.join();
      } catch (CompletionException error) {
        StretchException cause = (StretchException) error.getCause();
        require(cause.status() == StretchException.Status.CANCELLED, cause.getMessage());
        ++cancelled;
      }
    }
    require(cancelled > 0, "runs that were cancelled at once");
  }

  private static void closedModelsRefuse() throws IOException {
    Model model = Model.load(artifact);
    ByteBuffer output = output(model);
    model.close();
    model.close();
    try {
      model.run(List.of(input), List.of(output));
      throw new AssertionError("a closed model ran");
    } catch (IllegalStateException error) {
      require(error.getMessage().contains("closed"), error.getMessage());
    }
  }
}
