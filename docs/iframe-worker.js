// Search without a server: browsers start no worker of a page that was opened as a file, so the
// program of the worker runs in a frame. The theme would fetch such a script from another site.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      const program = frame.contentDocument.createElement("script");
      program.src = new URL(url, location);
      this.ready = new Promise((resolve) => (program.onload = resolve));
      frame.contentDocument.body.append(program);
    }

    postMessage(data) {
      const Message = this.inside.MessageEvent;
      this.ready.then(() => this.inside.dispatchEvent(new Message("message", { data })));
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
