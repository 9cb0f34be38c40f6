package ai.onnxruntime;

import java.nio.ByteBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

/** The constructors of tensors that the loader uses, for a check of its types. */
public abstract class OnnxTensor extends OnnxTensorLike {
    public static OnnxTensor createTensor(OrtEnvironment e, FloatBuffer data, long[] shape)
            throws OrtException {
        throw new OrtException();
    }

    public static OnnxTensor createTensor(OrtEnvironment e, DoubleBuffer data, long[] shape)
            throws OrtException {
        throw new OrtException();
    }

    public static OnnxTensor createTensor(OrtEnvironment e, LongBuffer data, long[] shape)
            throws OrtException {
        throw new OrtException();
    }

    public static OnnxTensor createTensor(OrtEnvironment e, IntBuffer data, long[] shape)
            throws OrtException {
        throw new OrtException();
    }

    public static OnnxTensor createTensor(OrtEnvironment e, ShortBuffer data, long[] shape)
            throws OrtException {
        throw new OrtException();
    }

    public static OnnxTensor createTensor(OrtEnvironment e, ByteBuffer data, long[] shape)
            throws OrtException {
        throw new OrtException();
    }

    public static OnnxTensor createTensor(
            OrtEnvironment e, ByteBuffer data, long[] shape, OnnxJavaType type)
            throws OrtException {
        throw new OrtException();
    }
}
