// Compiles Java sources into one jar, in one JVM: `java Compile.java out.jar [-start Class] source...`. Exit 1: does not
// compile. A public class may have any name in any file. The class to start is written into the manifest as
// Program-Class: the one that was named; or else `Main` if it has a main, or the first class, outermost first, that has
// one. The last source is the judge's own and is not looked into.

import java.io.*;
import java.net.URI;
import java.nio.charset.*;
import java.nio.file.*;
import java.util.*;
import java.util.jar.*;
import java.util.zip.*;
import javax.tools.*;

public class Compile {
    static class Source extends SimpleJavaFileObject {
        final String text;

        Source(String name) throws Exception {
            super(new URI("string", "", Path.of("/", name).normalize().toString(), null), Kind.SOURCE);
            text = new String(Files.readAllBytes(Path.of(name)), StandardCharsets.UTF_8);
        }

        @Override public CharSequence getCharContent(boolean lenient) { return text; }

        @Override public boolean isNameCompatible(String simpleName, Kind kind) { return kind == Kind.SOURCE; }
    }

    static class Output extends SimpleJavaFileObject {
        final ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        Output(String name) { super(URI.create("mem:///" + name.replace('.', '/') + ".class"), Kind.CLASS); }

        @Override public OutputStream openOutputStream() { return bytes; }
    }

    static class Memory extends ForwardingJavaFileManager<StandardJavaFileManager> {
        final Map<String, Output> classes = new LinkedHashMap<>();
        final List<String> ofProgram = new ArrayList<>();
        final JavaFileObject own;

        Memory(StandardJavaFileManager base, JavaFileObject own) { super(base); this.own = own; }

        @Override public JavaFileObject getJavaFileForOutput(Location l, String name, JavaFileObject.Kind k, FileObject from) {
            Output output = new Output(name);
            classes.put(name, output);
            if (from != own) ofProgram.add(name);
            return output;
        }
    }

    /** Reads a compiled class without running anything of it. */
    static class Loader extends ClassLoader {
        final Map<String, Output> classes;

        Loader(Map<String, Output> classes) { this.classes = classes; }

        @Override protected Class<?> findClass(String name) throws ClassNotFoundException {
            Output output = classes.get(name);
            if (output == null) throw new ClassNotFoundException(name);
            byte[] bytes = output.bytes.toByteArray();
            return defineClass(name, bytes, 0, bytes.length);
        }
    }

    public static void main(String[] arguments) throws Exception {
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        if (compiler == null) throw new IllegalStateException("this Java has no compiler: it is a JRE, not a JDK");
        String start = arguments[1].equals("-start") ? arguments[2] : "";
        List<Source> sources = new ArrayList<>();
        for (String name : Arrays.asList(arguments).subList(start.isEmpty() ? 1 : 3, arguments.length)) sources.add(new Source(name));
        StandardJavaFileManager base = compiler.getStandardFileManager(null, null, StandardCharsets.UTF_8);
        Memory memory = new Memory(base, sources.get(sources.size() - 1));
        List<String> options = List.of("-nowarn", "-proc:none", "-Xmaxerrs", "5", "-g:none", "-Xlint:none");
        boolean done = compiler.getTask(new PrintWriter(System.err, true), memory, null, options, null, sources).call();
        if (!done) System.exit(1);
        String mainClass = mainClass(memory, start);
        if (!start.isEmpty() && mainClass.isEmpty()) {
            System.err.println("error: no class " + start + " has a main(String[])");
            System.exit(1);
        }
        write(arguments[0], memory, mainClass);
    }

    static String mainClass(Memory memory, String start) {
        Loader loader = new Loader(memory.classes);
        String first = "";
        List<String> names = new ArrayList<>(memory.ofProgram);
        names.sort(Comparator.comparingInt(name -> name.indexOf('$') < 0 ? 0 : 1));
        for (String name : names) {
            if (!start.isEmpty() && !name.equals(start)) continue;
            try {
                loader.loadClass(name).getDeclaredMethod("main", String[].class);
            } catch (NoSuchMethodException | ClassNotFoundException | LinkageError error) {
                continue;
            }
            if (name.equals("Main")) return name;
            if (first.isEmpty()) first = name;
        }
        return first;
    }

    static void write(String path, Memory memory, String mainClass) throws IOException {
        Manifest manifest = new Manifest();
        manifest.getMainAttributes().put(Attributes.Name.MANIFEST_VERSION, "1.0");
        if (!mainClass.isEmpty()) manifest.getMainAttributes().putValue("Program-Class", mainClass);
        try (ZipOutputStream jar = new ZipOutputStream(new FileOutputStream(path))) {
            jar.setLevel(Deflater.BEST_SPEED);
            jar.putNextEntry(new ZipEntry(JarFile.MANIFEST_NAME));
            manifest.write(jar);
            for (Map.Entry<String, Output> entry : memory.classes.entrySet()) {
                jar.putNextEntry(new ZipEntry(entry.getKey().replace('.', '/') + ".class"));
                entry.getValue().bytes.writeTo(jar);
            }
        }
    }
}
