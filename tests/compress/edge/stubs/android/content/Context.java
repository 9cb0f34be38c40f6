package android.content;

/** What the loader uses of Android, for a check of its types. */
public abstract class Context {
    public abstract Assets getAssets();

    public interface Assets {
        java.io.InputStream open(String name) throws java.io.IOException;
    }
}
