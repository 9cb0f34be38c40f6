package ai.onnxruntime;

import java.util.Map;

public abstract class OrtSession implements AutoCloseable {
    public abstract Result run(Map<String, ? extends OnnxTensorLike> inputs) throws OrtException;

    @Override
    public abstract void close() throws OrtException;

    public abstract static class Result
            implements AutoCloseable, Iterable<Map.Entry<String, OnnxValue>> {
        @Override
        public abstract void close();
    }
}
