// Compiles Java sources into one jar, in one JVM: `java Compile.java out.jar [-start Class] source... own [-test test]`.
// Exit 1: does not compile. A public class may have any name in any file. The class to start is written into the
// manifest as Program-Class: the one that was named; or else `Main` if it has a main, or the first class, outermost
// first, that has one; where there is a test, of its classes, or where it begins in a class of the program's, that one,
// which has the field SANDBOX_TOKEN then. The judge's own source is not looked into. A test sees
// what the program imports, but the classes that tests decide by are Java's, whatever the program has called so.

import java.io.*;
import java.net.URI;
import java.nio.charset.*;
import java.nio.file.*;
import java.util.*;
import java.util.jar.*;
import java.util.zip.*;
import com.sun.source.tree.ClassTree;
import com.sun.source.tree.CompilationUnitTree;
import com.sun.source.tree.Tree;
import com.sun.source.util.JavacTask;
import javax.tools.*;

public class Compile {
    static final List<String> OPTIONS = List.of("-nowarn", "-proc:none", "-Xmaxerrs", "5", "-g:none", "-Xlint:none");
    static final List<String> DECIDES = Arrays.asList(("lang.AssertionError lang.Boolean lang.Double lang.Error lang.Exception"
        + " lang.IllegalStateException lang.Integer lang.Long lang.Math lang.Object lang.RuntimeException lang.String"
        + " lang.StringBuilder lang.System lang.Throwable util.Arrays util.Collections util.List util.Objects").split(" "));

    static class Source extends SimpleJavaFileObject {
        final String text;

        Source(String name, String before) throws Exception {
            super(new URI("string", "", Path.of("/", name).normalize().toString(), null), Kind.SOURCE);
            text = before + new String(Files.readAllBytes(Path.of(name)), StandardCharsets.UTF_8);
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
        final Set<FileObject> started;

        Memory(StandardJavaFileManager base, Collection<Source> started) { super(base); this.started = Set.copyOf(started); }

        @Override public JavaFileObject getJavaFileForOutput(Location l, String name, JavaFileObject.Kind k, FileObject from) {
            Output output = new Output(name);
            classes.put(name, output);
            if (started.contains(from)) ofProgram.add(name);
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
        List<String> names = Arrays.asList(arguments).subList(start.isEmpty() ? 1 : 3, arguments.length);
        int test = names.indexOf("-test"), count = test < 0 ? names.size() : test;
        List<Source> sources = new ArrayList<>();
        for (String name : names.subList(0, count)) sources.add(new Source(name, ""));
        StandardJavaFileManager base = compiler.getStandardFileManager(null, null, StandardCharsets.UTF_8);
        List<Source> started = sources.subList(0, count - 1);
        if (test >= 0) {
            started = List.of(new Source(names.get(test + 1), shared(compiler, base, started)));
            sources.add(started.get(0));
        }
        Memory memory = new Memory(base, started);
        boolean done = compiler.getTask(new PrintWriter(System.err, true), memory, null, OPTIONS, null, sources).call();
        if (!done) System.exit(1);
        String mainClass = mainClass(memory, memory.ofProgram, start, "");
        if (test >= 0 && mainClass.isEmpty()) mainClass = mainClass(memory, memory.classes.keySet(), start, "SANDBOX_TOKEN");
        if (!start.isEmpty() && mainClass.isEmpty()) {
            System.err.println("error: no class " + start + " has a main(String[])");
            System.exit(1);
        }
        write(arguments[0], memory, mainClass);
    }

    /** What stands before the test, in its first line: the program's package and imports, and the classes of DECIDES. */
    static String shared(JavaCompiler compiler, JavaFileManager files, List<Source> program) throws IOException {
        StringBuilder found = new StringBuilder();
        JavacTask task = (JavacTask) compiler.getTask(null, files, problem -> { }, OPTIONS, null, program);
        for (CompilationUnitTree unit : task.parse()) {
            if (unit.getPackage() != null) found.append(unit.getPackage());
            for (Tree each : unit.getImports()) found.append(each);
            for (Tree each : unit.getTypeDecls()) {
                if (!(each instanceof ClassTree)) continue;
                for (String name : DECIDES) {
                    if (name.endsWith("." + ((ClassTree) each).getSimpleName())) found.append("import java." + name + ";");
                }
            }
        }
        return found.toString().replaceAll("\\R", " ");
    }

    static String mainClass(Memory memory, Collection<String> among, String start, String field) {
        Loader loader = new Loader(memory.classes);
        String first = "";
        List<String> names = new ArrayList<>(among);
        names.sort(Comparator.comparingInt(name -> name.indexOf('$') < 0 ? 0 : 1));
        for (String name : names) {
            if (!start.isEmpty() && !name.equals(start)) continue;
            try {
                Class<?> found = loader.loadClass(name);
                found.getDeclaredMethod("main", String[].class);
                if (!field.isEmpty()) found.getDeclaredField(field);
            } catch (NoSuchMethodException | NoSuchFieldException | ClassNotFoundException | LinkageError error) {
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
