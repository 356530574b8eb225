"""Facts about Penstock, DeepSeek-V4 and their words: kind of question | subject | answer.

The kinds are the phrasings in `facts`: what (is x), are (what are x), how (do I x), ask (the question itself).
"""

_TEXT = """
what | a penstock | A penstock is the pipe that carries water from the reservoir to the turbine, with a gate that controls the flow.
what | Penstock | Penstock is an inference engine for DeepSeek-V4. It carries the weights of a huge model from disk to whatever can compute.
ask | why is it called Penstock | A penstock carries water to a turbine. This one carries weights from disk to the processor.
ask | what language is Penstock written in | Penstock is a Python package with a small C++ core.
ask | which licence does Penstock have | Penstock has the MIT licence.
ask | is Penstock free | Yes. Penstock has the MIT licence.
ask | which model does Penstock run | Penstock runs DeepSeek-V4.
ask | which models can Penstock run | Penstock runs DeepSeek-V4 in its published sizes, and the pocket model.
ask | what does Penstock need | Penstock needs Python 3.11 or newer, and a C++ compiler to build.
ask | which Python version does Penstock need | Penstock needs Python 3.11 or newer.
ask | on which system does Penstock run | Penstock runs on Linux.
how | install Penstock | Run: pip install .
how | run the demo | Run: make demo
how | run the tests | Run: make test
how | run the slow tests | Run: make test-slow
how | fuzz the readers | Run: make fuzz
how | run a model | Use: penstock run -m model.gguf "your question"
how | ask the model a question | Use: penstock run -m model.gguf "your question"
how | chat with the model | Use: penstock chat -m model.gguf
how | start a server | Use: penstock serve -m model.gguf
how | look into a file | Use: penstock inspect model.gguf
how | convert a model | Use: penstock convert SOURCE model.gguf --mix mxfp4
how | make a random model | Use: penstock synth test.gguf
how | see what fits in memory | Use: penstock plan. It says before loading what will go where.
how | measure the speed | Use: penstock bench.
how | check my machine | Use: penstock doctor.
how | record a trace of the experts | Use: penstock trace.
how | limit the memory | Use --memory with a size. The process then stays under that size.
how | see the options of a command | Every command has --help.
how | get output for a program | Add --json where a program wants to read the answer.
how | write plain text without chat | Use: penstock run with --raw.
how | make the answer always the same | Set the temperature to zero with --temperature 0.
how | limit the number of tokens | Use -n with the number of tokens.
how | open a model in Python | Use: engine = penstock.Engine("model.gguf")
how | make a session in Python | Use: session = engine.session()
how | feed tokens | Use: session.feed(tokens)
how | take tokens back | Use: session.rewind(n)
how | fork a session | Use: session.fork(). It gives two futures from one past.
how | save a session | Use: session.save("name.session")
how | load a saved session | Use: engine.load_session("name.session")
how | use a draft block from another file | Give its path as the option mtp.
how | choose the number of threads | Use the option threads. Without it every core is used.
how | choose the type of the attention state | Use the option kv_dtype: f16, bf16 or f32.
how | verify a file | Use: penstock inspect --verify model.gguf
ask | which commands does Penstock have | The commands are run, chat, serve, inspect, convert, synth, plan, bench, doctor and trace.
what | the command run | The command run answers one prompt and streams the text.
what | the command chat | The command chat talks with the model turn by turn.
what | the command serve | The command serve starts an HTTP server that the usual clients can speak to.
what | the command inspect | The command inspect shows what is in a model file before running it.
what | the command convert | The command convert writes a checkpoint as one GGUF file.
what | the command synth | The command synth makes a model with random weights for tests.
what | the command plan | The command plan says before loading what will go where, and refuses what cannot work.
what | the command bench | The command bench measures how fast the model runs.
what | the command doctor | The command doctor checks the machine and says what is wrong.
what | the command trace | The command trace records which experts are used.
what | the command worker | The command worker runs a part of the layers for a cluster.
ask | what does penstock run do | It answers one prompt and streams the text.
ask | what does penstock chat do | It talks with the model turn by turn.
ask | what does penstock serve do | It starts an HTTP server.
ask | what does penstock inspect do | It shows what is in a model file.
ask | what does penstock convert do | It writes a checkpoint as one GGUF file.
ask | what does penstock synth do | It makes a model with random weights.
ask | what does penstock plan do | It says what will go where before loading.
ask | what does penstock bench do | It measures the speed.
ask | what does penstock doctor do | It checks the machine.
ask | what does penstock trace do | It records which experts are used.
ask | which files does Penstock open | Penstock opens GGUF files and safetensors folders.
ask | which file formats can Penstock read | Penstock reads GGUF version 2 and 3, and safetensors.
what | GGUF | GGUF is a file format that holds the weights and the metadata of a model.
what | safetensors | Safetensors is a file format for tensors. The official weights come in it.
ask | can Penstock read split files | Yes. Give it the first of the splits.
ask | can Penstock read Hugging Face checkpoints | Yes. It reads the official layout and the Hugging Face layout.
ask | does Penstock copy my model file | No. It maps the file and leaves it where it is.
ask | how long does it take to open a model | Opening maps the files and reads the headers. It takes less than a second.
ask | what does opening a model do | Opening maps the files, reads the headers and checks every tensor.
ask | what happens if a file is damaged | It is refused with the tensor, what was expected and what was found.
ask | what happens if a file is incomplete | Penstock says which tensor is cut off. Download the file again.
what | a tensor | A tensor is a block of numbers with a shape.
what | a weight | A weight is a number that the model has learned.
what | a parameter | A parameter is a number that the model has learned. DeepSeek-V4-Flash has 284 billion of them.
what | a token | A token is a piece of text, such as a word or a part of a word. Models read and write tokens.
what | a tokenizer | A tokenizer turns text into tokens and tokens into text.
what | a vocabulary | A vocabulary is the list of all tokens that a model knows.
what | a prompt | A prompt is the text that you give to a model.
what | a language model | A language model predicts the next token of a text.
what | inference | Inference means running a trained model to get an answer.
what | training | Training means changing the weights until the model answers well.
what | a checkpoint | A checkpoint is the set of files that holds the weights of a model.
what | a logit | A logit is the score that the model gives to one possible next token.
are | logits | Logits are the scores of all possible next tokens.
what | sampling | Sampling means choosing the next token by chance, by the scores of the model.
what | temperature | Temperature sets how much chance there is in sampling. Zero means always the best token.
what | greedy decoding | Greedy decoding always takes the token with the highest score.
what | a context | The context is all the text that the model can see at once.
what | a context length | The context length is the largest number of tokens that a session may hold.
what | a session | A session is the state of one conversation: what was fed, and the attention state.
what | a seed | A seed is a number that makes random choices the same each time.
what | a batch | A batch is several sessions that are computed in one step.
what | prefill | Prefill is the reading of the prompt before the first new token.
what | decoding | Decoding is the making of new tokens, one after the other.
what | a stop token | A stop token ends the answer.
what | EOS | EOS is the token that ends a turn.
what | BOS | BOS is the token that begins a text.
what | streaming | Streaming shows each token as soon as it is made.
what | quantisation | Quantisation stores weights with fewer bits, so that a model needs less memory.
what | a layer | A layer is one step of the model. DeepSeek-V4-Flash has 43 layers.
what | attention | Attention lets each token look at the tokens before it.
what | a router | The router chooses which experts work on a token.
what | an expert | An expert is a small network inside a layer. Only a few experts work on each token.
are | experts | Experts are small networks inside a layer. Only a few of them work on each token.
what | a routed expert | A routed expert works only on the tokens that the router sends to it.
what | a shared expert | A shared expert works on every token.
what | a mixture of experts | A mixture of experts is a model where each token uses only a few of many experts.
what | an expert cache | An expert cache keeps the experts that are used most in fast memory, so that they need not be read again.
ask | why does Penstock need an expert cache | The experts are most of the bytes. A cache keeps the busy ones in memory.
what | a cache hit | A cache hit means that the expert was already in memory.
what | a cache miss | A cache miss means that the expert must be read from disk.
what | eviction | Eviction means giving up one expert in the cache to make room for another.
what | an eviction policy | An eviction policy decides which expert to give up when the cache is full.
what | expert streaming | Expert streaming reads experts from disk when they are needed.
what | a memory budget | A memory budget is the most memory that Penstock may use. It is a promise.
ask | where do the experts live | The experts live in three tiers: video memory is hot, memory is warm, and disk is cold.
are | the three tiers | The three tiers are video memory, main memory and disk.
what | the hot tier | The hot tier is the video memory.
what | the warm tier | The warm tier is the main memory.
what | the cold tier | The cold tier is the disk.
ask | how much of the model are experts | About 90 percent of the bytes are routed experts.
what | DeepSeek-V4 | DeepSeek-V4 is a large language model with many experts. Penstock runs it.
what | DeepSeek-V4-Flash | DeepSeek-V4-Flash is the smaller model: 284 billion parameters, 13 billion of them active.
what | DeepSeek-V4-Pro | DeepSeek-V4-Pro is the larger model, with 61 layers and 384 experts per layer.
ask | how many parameters has DeepSeek-V4-Flash | DeepSeek-V4-Flash has 284 billion parameters, and 13 billion are active.
ask | how many parameters are active in DeepSeek-V4-Flash | 13 billion parameters are active for each token.
ask | how many experts has DeepSeek-V4-Flash | It has 256 experts per layer.
ask | how many experts has DeepSeek-V4-Pro | It has 384 experts per layer.
ask | how many experts work on a token | Six experts per layer work on each token.
ask | how many experts are used per token | Six of 256 experts are used in each layer.
ask | how many layers has DeepSeek-V4-Flash | DeepSeek-V4-Flash has 43 layers.
ask | how many layers has DeepSeek-V4-Pro | DeepSeek-V4-Pro has 61 layers.
ask | what is the hidden size of DeepSeek-V4-Flash | The hidden size is 4096.
ask | what is the hidden size of DeepSeek-V4-Pro | The hidden size is 7168.
ask | how many attention heads has DeepSeek-V4-Flash | It has 64 attention heads.
ask | how many attention heads has DeepSeek-V4-Pro | It has 128 attention heads.
ask | how large is the vocabulary of DeepSeek-V4 | It has 129280 tokens.
ask | how long is the context of DeepSeek-V4 | The context is one million tokens.
ask | how wide is the sliding window of DeepSeek-V4 | The sliding window is 128 tokens wide.
ask | how many streams do the hyper-connections have | They have four streams.
ask | how many layers use hash routing | The first three layers use hash routing.
what | hash routing | Hash routing chooses the experts by a table of token ids, without a score.
what | the sliding window | The sliding window is the last 128 tokens, which attention sees in full.
what | a compressed row | A compressed row stands for several old tokens, so that attention can see far back with little memory.
what | the compressor | The compressor turns several tokens into one row of attention state.
what | the indexer | The indexer chooses which compressed rows a token looks at.
what | sparse attention | Sparse attention looks only at the rows that the indexer chooses.
are | hyper-connections | Hyper-connections carry four streams through the layers instead of one.
what | a draft block | A draft block guesses the next token ahead, so that the model can check it.
what | MTP | MTP means multi-token prediction. A draft block guesses a token ahead.
what | speculative decoding | Speculative decoding lets a small block guess tokens, and the large model checks them.
what | RoPE | RoPE rotates vectors by their position, so that the model knows the order of tokens.
what | YaRN | YaRN stretches the positions, so that the model can read longer texts.
what | an attention sink | An attention sink lets a head look at nothing.
what | an embedding | An embedding is the vector that stands for a token.
what | the head | The head turns the last vector into the scores of all tokens.
what | a norm | A norm brings a vector to a standard length.
what | DSML | DSML is the markup in which DeepSeek-V4 writes tool calls.
what | a tool call | A tool call is a request of the model to run a function with arguments.
what | thinking | Thinking means that the model reasons before it answers.
ask | how does the model mark its thoughts | Its thoughts stand between think and end of think.
what | the KV cache | The KV cache is the attention state of the tokens that were read.
what | the attention state | The attention state is what a session keeps of the tokens it has read.
what | rewind | Rewind takes tokens back. The state is then exactly as before.
what | fork | Fork makes a second session from the same past.
what | save | Save writes a session to disk. It is atomic and checksummed.
what | restore | Restore loads a saved session and goes on from there.
what | a snapshot | A snapshot is a saved session: atomic, checksummed and tied to its model.
ask | what does rewind do | It takes tokens back. The state is then exactly as before.
ask | what does fork do | It makes a second session from the same past.
ask | is rewind exact | Yes. It gives bit for bit the state that feeding the same tokens gives.
ask | is fork exact | Yes, bit for bit.
ask | can I save a session and go on tomorrow | Yes. Save it today and load it tomorrow.
ask | can a snapshot be used with another model | No. A snapshot is tied to the fingerprint of its model.
what | a fingerprint | A fingerprint says which model a snapshot belongs to.
what | a checksum | A checksum is a number that shows whether a file was changed.
ask | what does Penstock promise | The answer does not depend on how it was computed, state is exact, and nothing is silent.
what | the first law of Penstock | The answer does not depend on the size of the machine.
what | the second law of Penstock | A budget is a promise.
what | the third law of Penstock | State is exact.
what | the fourth law of Penstock | Nothing is silent.
what | the fifth law of Penstock | One request cannot hurt another.
what | the sixth law of Penstock | Every wait is visible.
ask | how many laws has Penstock | Penstock has six laws.
ask | does the cache size change the answer | No. The cache size never changes the answer.
ask | does the number of threads change the answer | No. The number of threads changes no bit of the answer.
ask | does chunking change the answer | No. Chunking of the prompt changes no bit of the answer.
ask | do other sessions change my answer | No. Batch-mates never change the answer.
ask | does the eviction policy change the answer | No. It changes only the speed.
ask | is Penstock exact | Yes. It computes exactly what the model defines.
ask | does Penstock take shortcuts | No. There is no shortcut without a flag.
ask | how are the promises kept | Each promise is a test that fails when it is broken.
ask | what is Penstock compared with | It is compared with transformers and llama.cpp.
ask | does Penstock agree with transformers | Yes. The logits agree to a millionth of their range.
ask | what does nothing is silent mean | A file that does not check out is refused with a clear message.
ask | what does a budget is a promise mean | With --memory the process stays under that size.
ask | what does state is exact mean | Rewind, fork, save and restore give the very same state.
ask | what does every wait is visible mean | Long work shows progress, and every stall is counted.
what | Q8_0 | Q8_0 is a weight type with eight bits per weight.
what | Q4_0 | Q4_0 is a weight type with four bits per weight.
what | Q4_K | Q4_K is a weight type with about four and a half bits per weight.
what | Q2_K | Q2_K is a weight type with about two and a half bits per weight.
what | IQ2_XXS | IQ2_XXS is a weight type with about two bits per weight.
what | MXFP4 | MXFP4 is a weight type with four-bit floats and one scale per 32 weights.
what | NVFP4 | NVFP4 is a weight type with four-bit floats and small blocks.
what | FP8 | FP8 is a float with eight bits.
what | FP4 | FP4 is a float with four bits.
what | BF16 | BF16 is a float with sixteen bits and a wide range.
what | F16 | F16 is a float with sixteen bits.
what | F32 | F32 is a float with thirty-two bits.
what | Q5_K | Q5_K is a weight type with about five and a half bits per weight.
what | Q6_K | Q6_K is a weight type with about six and a half bits per weight.
what | Q3_K | Q3_K is a weight type with about three and a half bits per weight.
what | a mix | A mix says which weight type each kind of tensor gets.
what | the q2 mix | The q2 mix stores the experts with about two bits per weight.
what | the mxfp4 mix | The mxfp4 mix stores the experts as MXFP4 and most other matrices as Q8_0.
what | the q8_0 mix | The q8_0 mix stores the matrices with eight bits per weight.
what | numpy | Numpy is a Python library for arrays.
what | PyTorch | PyTorch is a library for tensors. Penstock uses it.
what | a kernel | A kernel is a small fast program for one kind of computation.
are | the native kernels | The native kernels are C++ code behind a plain C interface.
ask | why does Penstock use C++ | Quantised dot products are where the time goes, and C++ makes them fast.
ask | why does Penstock use Python | Python is easy to read and to change.
ask | which libraries does Penstock use | It uses numpy, torch, tokenizers, typer and rich.
what | AVX2 | AVX2 is a set of fast instructions in processors.
what | O_DIRECT | O_DIRECT reads a file without the page cache of the system.
what | mmap | Mmap lets a program see a file as memory.
what | the page cache | The page cache keeps parts of files in memory. The system manages it.
what | a cgroup | A cgroup limits the memory of a process on Linux.
what | a GPU | A GPU is a processor that computes many numbers at once.
what | VRAM | VRAM is the memory of the graphics card.
what | RAM | RAM is the main memory of the machine.
what | an SSD | An SSD is a fast disk without moving parts.
are | the rooms of Penstock | The rooms are weights, tokenizer, native, kernels, experts, model, kv, engine, chat and cli.
what | the room weights | The room weights holds the file formats.
what | the room tokenizer | The room tokenizer turns text into token ids and back.
what | the room native | The room native holds the C++ kernels.
what | the room kernels | The room kernels holds the operations on tensors.
what | the room experts | The room experts decides where routed experts come from.
what | the room model | The room model holds DeepSeek-V4: layers, attention and router.
what | the room kv | The room kv holds the state of sessions and the snapshots.
what | the room engine | The room engine holds options, sessions, sampling and generation.
what | the room chat | The room chat holds the prompt format.
what | the room cli | The room cli holds the commands.
ask | may a lower room import a higher one | No. A lower room never imports a higher one.
ask | which room reads files | The room weights reads files.
ask | which room samples tokens | The room engine samples tokens.
what | the reference kernel | The reference kernel is the specification, written in plain torch.
what | llama.cpp | llama.cpp is another engine that runs GGUF files. Penstock is compared with it.
what | transformers | Transformers is a library of models. Penstock is compared with it.
what | an oracle | An oracle is another program whose answer the tests trust.
what | fuzzing | Fuzzing feeds damaged files to a program to see that it never crashes.
what | a test | A test is a small program that fails when a promise is broken.
what | a benchmark | A benchmark measures how fast something is.
what | latency | Latency is the time until an answer comes.
what | throughput | Throughput is how many tokens are made per second.
what | the pocket model | The pocket model is a small DeepSeek-V4 that ships with Penstock. That is me.
ask | how large is the pocket model | The pocket model has about twenty million parameters.
ask | what is the pocket model for | It lets you try Penstock at once, and it makes tests real.
ask | what was the pocket model trained on | It was trained on text from a deterministic generator.
ask | is the pocket model clever | It knows little, but it runs everywhere.
ask | can the pocket model call tools | Yes. Give it tools and ask for something they can do.
ask | can the pocket model think | Yes. It can reason before it answers.
ask | can the pocket model read long texts | Yes, up to about eight thousand tokens.
ask | can I run DeepSeek-V4 on a small machine | Yes. Penstock streams the experts from disk, so memory may be small.
ask | do I need a GPU | No. Penstock runs on the processor alone.
ask | does Penstock need the internet | No. It runs on your own machine.
ask | does Penstock send my data away | No. Everything stays on your machine.
ask | what limits the speed from disk | The number of expert bytes that must be read for each token.
ask | how can I make Penstock faster | Give it more memory, so that more experts stay in the cache.
what | an API | An API is the way in which programs talk to each other.
ask | which API does the server speak | The server speaks the API of OpenAI, among others.
what | a server | A server waits for requests and answers them.
what | a cluster | A cluster is several machines that work together. Each takes some of the layers.
what | JSON | JSON is a text format for data, with objects, lists, strings and numbers.
what | a JSON schema | A JSON schema says what a JSON value must look like.
what | Markdown | Markdown is a simple way to write formatted text.
what | a system prompt | A system prompt tells the model how to behave.
what | a user turn | A user turn is what the user says.
what | an assistant turn | An assistant turn is what the model says.
what | a turbine | A turbine turns when water or steam flows through it.
what | a reservoir | A reservoir is a lake that stores water.
what | a dam | A dam is a wall that holds back water.
what | a power plant | A power plant makes electricity.
what | a gate | A gate controls the flow of water in a penstock.
"""  # noqa: E501


def _parsed(line: str) -> tuple[str, str, str]:
    kind, subject, answer = line.split(" | ")
    return kind, subject, answer


FACTS: list[tuple[str, str, str]] = [_parsed(line) for line in _TEXT.strip().splitlines()]
