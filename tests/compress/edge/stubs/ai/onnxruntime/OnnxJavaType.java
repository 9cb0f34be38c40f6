package ai.onnxruntime;

public enum OnnxJavaType {
    UINT8
}
