package tvm.stretch;

/** A model could not be loaded or run; the message says what to do. */
public final class StretchException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** Kinds of failures, in the order of {@code TvmStretchStatus} in {@code tvm_stretch.h}. */
  public enum Status {
    OK,
    INVALID,
    BAD_ARTIFACT,
    BAD_VALUES,
    RUN,
    NO_MEMORY,
    DEVICE,
    CANCELLED,
    INTERNAL
  }

  private final Status status;

  StretchException(int status, String message) {
    super(message);
    Status[] known = Status.values();
    this.status = status < known.length ? known[status] : Status.INTERNAL;
  }

  public Status status() {
    return status;
  }
}
