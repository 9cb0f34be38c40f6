package ai.onnxruntime;

public abstract class OrtEnvironment implements AutoCloseable {
    public static OrtEnvironment getEnvironment() {
        throw new IllegalStateException();
    }

    public abstract OrtSession createSession(byte[] model) throws OrtException;
}
