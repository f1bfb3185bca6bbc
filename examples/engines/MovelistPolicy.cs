// Plays a policy that movelist trained: one file for Unity (Mono or IL2CPP) and any other .NET, without dependencies.
//
//     var policy = Movelist.Policy.Load(bytes, "my_game", "float32[97]");      // throws Movelist.PolicyException
//     Movelist.Choice choice = policy.Choose(state, ids, ids.Length, new Movelist.PlayOptions());
//     Play(ids[choice.Index]);
//
// The file is written by `movelist export RUN --profile weights --out policy.safetensors`; docs/export.md describes it.
// In Unity put it into StreamingAssets, or rename it to .bytes and read TextAsset.bytes. No reflection, no unsafe code,
// no number depends on the system's language. A Policy is for one thread at a time: give each thread its Copy(), copies
// share the weights. Once a call has seen the longest list, later calls allocate nothing.
//
// The score of an action is w . relu(U h_state + V h_action); V h_action is the same as long as the weights are, so it
// is kept for ids that were seen before, in a table of fixed size.
//
// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Text;

namespace Movelist
{
    /// <summary>A policy file or a call cannot be used; the message says what to do.</summary>
    public sealed class PolicyException : Exception
    {
        public PolicyException(string message) : base(message) { }
    }

    /// <summary>How to choose. The default always plays the likeliest action.</summary>
    public struct PlayOptions
    {
        /// <summary>Draw by probability instead of playing the likeliest action; the rest matters only then.</summary>
        public bool Sample;

        /// <summary>Above 1 plays weaker and more varied, below 1 closer to the best; 0 counts as 1.</summary>
        public float Temperature;

        /// <summary>Draw from the k likeliest only; 0 draws from all.</summary>
        public int TopK;

        /// <summary>The same seed and turn draw the same action, here and in movelist.</summary>
        public ulong Seed;
        public ulong Turn;
    }

    /// <summary>The chosen place in the list, and the logarithm of the probability with which it was drawn (for the
    /// likeliest action: the policy's own probability of it).</summary>
    public struct Choice
    {
        public int Index;
        public float LogProb;
    }

    /// <summary>What the file says about itself.</summary>
    public sealed class PolicyInfo
    {
        public string Game, StateLayout, ActionEncoder, Movelist, SettingsHash;
        public long PolicyVersion;
        public int StateSize, HiddenDim, ActionHiddenDim;
        public int NumActions; // rows of the table; 0 for bits
    }

    public sealed class Policy
    {
        const int KeptActions = 1024; // halves of scores that are kept; a power of two
        const int Places = 8;         // an id may lie in any of these places side by side
        const ulong Golden = 0x9E3779B97F4A7C15UL;

        public readonly PolicyInfo Info;
        readonly Weights weights;
        readonly float[] first, second, stateHalf, action;
        readonly long[] keptId = new long[KeptActions];
        readonly bool[] kept = new bool[KeptActions];
        readonly byte[] oldest = new byte[KeptActions / Places]; // in each group of places, the one that goes next
        readonly int[] used; // the inputs of a product that are not 0
        readonly float[] keptHalf; // [KeptActions, H]
        float[] logits = new float[512], logProbs = new float[512], drawnFrom = new float[512];
        int[] order = new int[512];
        long[] signedIds = new long[0]; // of the last call with unsigned ones

        Policy(Weights weights)
        {
            this.weights = weights;
            Info = weights.Info;
            first = new float[Info.HiddenDim];
            second = new float[Info.HiddenDim];
            stateHalf = new float[Info.HiddenDim];
            action = new float[Info.ActionHiddenDim];
            used = new int[Math.Max(Info.StateSize, Math.Max(Info.HiddenDim, Info.ActionHiddenDim))];
            keptHalf = new float[KeptActions * Info.HiddenDim];
        }

        /// <summary>Reads the bytes of a file. game and stateLayout are what it has to be for; null accepts any.</summary>
        public static Policy Load(byte[] bytes, string game = null, string stateLayout = null)
        {
            return new Policy(new Reader(bytes).Read(game, stateLayout));
        }

        /// <summary>Reads a file.</summary>
        public static Policy LoadFile(string path, string game = null, string stateLayout = null)
        {
            byte[] bytes;
            try
            {
                bytes = File.ReadAllBytes(path);
            }
            catch (Exception error)
            {
                throw new PolicyException("the policy file cannot be read: " + error.Message);
            }
            return Load(bytes, game, stateLayout);
        }

        /// <summary>The same policy for another thread; the weights are shared.</summary>
        public Policy Copy()
        {
            return new Policy(weights);
        }

        /// <summary>Of the last call: the raw score of the action at this place of its list.</summary>
        public float Logit(int index) { return logits[index]; }

        /// <summary>Of the last call: the logarithm of the policy's probability of the action at this place.</summary>
        public float LogProb(int index) { return logProbs[index]; }

        /// <summary>Chooses one of the first `count` ids. Throws PolicyException if the state or the list is wrong.</summary>
        public Choice Choose(float[] state, long[] ids, int count, PlayOptions options)
        {
            float temperature = options.Temperature == 0f ? 1f : options.Temperature;
            Check(state, ids, count, temperature);
            EncodeState(state);
            if (logits.Length < count) Grow(count);
            for (int a = 0; a < count; ++a) logits[a] = Score(HalfOf(ids[a]));
            if (!LogSoftmax(logits, count, 1f, logProbs))
                throw new PolicyException("the policy's scores are not finite: is the state?");
            if (options.Sample) return Draw(count, temperature, options);
            int best = 0;
            for (int a = 1; a < count; ++a) if (logProbs[a] > logProbs[best]) best = a;
            return new Choice { Index = best, LogProb = logProbs[best] };
        }

        /// <summary>The same for ids that are kept as unsigned numbers, as MovelistWriter.cs takes them.</summary>
        public Choice Choose(float[] state, ulong[] ids, int count, PlayOptions options)
        {
            int there = ids == null ? 0 : ids.Length;
            if (count > there) return Choose(state, new long[there], count, options); // which refuses it
            if (signedIds.Length < count) signedIds = new long[Math.Max(count, 2 * signedIds.Length)];
            for (int a = 0; a < count; ++a) signedIds[a] = unchecked((long)ids[a]);
            return Choose(state, signedIds, count, options);
        }

        void Grow(int count)
        {
            int size = Math.Max(count, 2 * logits.Length);
            logits = new float[size];
            logProbs = new float[size];
            drawnFrom = new float[size];
            order = new int[size];
        }

        void Check(float[] state, long[] ids, int count, float temperature)
        {
            if (state == null || state.Length != Info.StateSize)
                throw new PolicyException("the state has the wrong width: got " + Text(state == null ? 0 : state.Length) +
                                          ", expected " + Text(Info.StateSize) + ".");
            if (ids == null || count < 1 || count > ids.Length)
                throw new PolicyException("there is no such list of legal actions: got " + Text(count) +
                                          ", expected at least 1 and at most the length of ids.");
            if (!(temperature > 0f) || float.IsInfinity(temperature))
                throw new PolicyException("the temperature has to be above 0.");
            for (int s = 0; s < state.Length; ++s)
                if (float.IsNaN(state[s]) || float.IsInfinity(state[s]))
                    throw new PolicyException("the state holds NaN or infinity.");
            if (Info.NumActions == 0) return;
            for (int a = 0; a < count; ++a)
                if (ids[a] < 0 || ids[a] >= Info.NumActions)
                    throw new PolicyException("an action id has no row in the table: got " + Text(ids[a]) +
                                              ", expected 0 to " + Text(Info.NumActions - 1) + ".");
        }

        static string Text(long number) { return number.ToString(CultureInfo.InvariantCulture); }

        // to[toStart..] += from . matrix, where matrix is [size, H]; rows whose input is 0 are skipped. Four rows at a
        // time, so that `to` is loaded a quarter as often.
        void AddProduct(float[] from, int size, float[] matrix, float[] to, int toStart, int H)
        {
            int count = 0, n = 0;
            for (int i = 0; i < size; ++i) if (from[i] != 0f) used[count++] = i;
            for (; n + 4 <= count; n += 4)
            {
                float x0 = from[used[n]], x1 = from[used[n + 1]], x2 = from[used[n + 2]], x3 = from[used[n + 3]];
                int row0 = used[n] * H, row1 = used[n + 1] * H, row2 = used[n + 2] * H, row3 = used[n + 3] * H;
                for (int h = 0; h < H; ++h)
                    to[toStart + h] += (x0 * matrix[row0 + h] + x1 * matrix[row1 + h]) +
                                       (x2 * matrix[row2 + h] + x3 * matrix[row3 + h]);
            }
            for (; n < count; ++n)
            {
                float x = from[used[n]];
                int row = used[n] * H;
                for (int h = 0; h < H; ++h) to[toStart + h] += x * matrix[row + h];
            }
        }

        static void Relu(float[] values)
        {
            for (int i = 0; i < values.Length; ++i) if (values[i] < 0f) values[i] = 0f;
        }

        void EncodeState(float[] state)
        {
            int H = Info.HiddenDim;
            Array.Copy(weights.State1Bias, first, H);
            AddProduct(state, state.Length, weights.State1, first, 0, H);
            Relu(first);
            Array.Copy(weights.State2Bias, second, H);
            AddProduct(first, H, weights.State2, second, 0, H);
            Relu(second);
            Array.Copy(weights.StateToPairBias, stateHalf, H);
            AddProduct(second, H, weights.StateToPair, stateHalf, 0, H);
        }

        // Where V h_action of an id begins in keptHalf; valid until the next call, which may need its place.
        int HalfOf(long id)
        {
            int H = Info.HiddenDim, W = Info.ActionHiddenDim;
            ulong bits = unchecked((ulong)id);
            int begin = (int)(Mix(bits) & (KeptActions - Places));
            for (int place = begin; place < begin + Places; ++place)
                if (kept[place] && keptId[place] == id) return place * H;
            int slot = begin + oldest[begin / Places]++ % Places;
            if (Info.NumActions > 0)
            {
                Array.Copy(weights.Action1, (int)id * W, action, 0, W);
            }
            else
            {
                Array.Copy(weights.Action1Bias, action, W);
                for (int bit = 0; bit < 64; ++bit)
                {
                    if (((bits >> bit) & 1UL) == 0UL) continue;
                    int row = bit * W;
                    for (int h = 0; h < W; ++h) action[h] += weights.Action1[row + h];
                }
            }
            Relu(action);
            Array.Clear(keptHalf, slot * H, H);
            AddProduct(action, W, weights.ActionToPair, keptHalf, slot * H, H);
            kept[slot] = true;
            keptId[slot] = id;
            return slot * H;
        }

        float Score(int half)
        {
            float[] pair = weights.Pair;
            float even = 0f, odd = 0f;
            for (int h = 0; h < pair.Length; ++h)
            {
                float value = stateHalf[h] + keptHalf[half + h];
                if (value <= 0f) continue;
                if ((h & 1) == 0) even += pair[h] * value; else odd += pair[h] * value;
            }
            return even + odd;
        }

        // False if a score is not finite. Scores of -infinity, which TopK makes, stay so.
        static bool LogSoftmax(float[] scores, int count, float temperature, float[] to)
        {
            double largest = double.NegativeInfinity, sum = 0.0;
            for (int a = 0; a < count; ++a)
            {
                if (float.IsNaN(scores[a]) || float.IsPositiveInfinity(scores[a])) return false;
                largest = Math.Max(largest, scores[a]);
            }
            if (double.IsInfinity(largest)) return false;
            for (int a = 0; a < count; ++a) sum += Math.Exp((scores[a] - largest) / temperature);
            double logSum = Math.Log(sum);
            for (int a = 0; a < count; ++a) to[a] = (float)((scores[a] - largest) / temperature - logSum);
            return true;
        }

        // Gumbel-max: the largest of log-probability plus noise falls on each action with its probability.
        Choice Draw(int count, float temperature, PlayOptions options)
        {
            Array.Copy(logits, drawnFrom, count);
            if (options.TopK > 0 && options.TopK < count) KeepLikeliest(count, options.TopK);
            LogSoftmax(drawnFrom, count, temperature, drawnFrom);
            int best = 0;
            float largest = float.NegativeInfinity;
            for (int a = 0; a < count; ++a)
            {
                float noisy = drawnFrom[a] + Gumbel(options.Seed, options.Turn, a);
                if (noisy > largest)
                {
                    largest = noisy;
                    best = a;
                }
            }
            return new Choice { Index = best, LogProb = drawnFrom[best] };
        }

        // Leaves the k likeliest, the first of equals; a heap of k, whose root is the least likely of them.
        void KeepLikeliest(int count, int k)
        {
            for (int a = 0; a < k; ++a) order[a] = a;
            for (int root = k / 2 - 1; root >= 0; --root) Sink(root, k);
            for (int a = k; a < count; ++a)
            {
                int dropped = a;
                if (Likelier(a, order[0]))
                {
                    dropped = order[0];
                    order[0] = a;
                    Sink(0, k);
                }
                drawnFrom[dropped] = float.NegativeInfinity;
            }
        }

        void Sink(int root, int k)
        {
            while (2 * root + 1 < k)
            {
                int child = 2 * root + 1;
                if (child + 1 < k && Likelier(order[child], order[child + 1])) ++child;
                if (!Likelier(order[root], order[child])) return;
                int swap = order[root];
                order[root] = order[child];
                order[child] = swap;
                root = child;
            }
        }

        bool Likelier(int a, int b)
        {
            return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
        }

        static ulong Mix(ulong x) // SplitMix64's finaliser
        {
            unchecked
            {
                x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9UL;
                x = (x ^ (x >> 27)) * 0x94D049BB133111EBUL;
                return x ^ (x >> 31);
            }
        }

        // Standard Gumbel noise for (seed, turn, place in the list), as movelist draws it.
        static float Gumbel(ulong seed, ulong turn, int place)
        {
            unchecked
            {
                ulong key = Mix(Mix(seed) + (turn + 1UL) * Golden);
                ulong bits = Mix(key + ((ulong)place + 1UL) * Golden);
                // 52 bits: with 53 the largest number would round to 1, whose noise is infinite.
                double unit = ((double)(bits >> 12) + 0.5) * (1.0 / 4503599627370496.0);
                return (float)(-Math.Log(-Math.Log(unit)));
            }
        }
    }

    // Matrices lie transposed, [in, out], so that one input adds a whole row.
    sealed class Weights
    {
        public PolicyInfo Info;
        public float[] State1, State1Bias, State2, State2Bias, StateToPair, StateToPairBias;
        public float[] Action1, Action1Bias, ActionToPair, Pair;
    }

    // Reads a whole file. Every size is checked before it is used.
    sealed class Reader
    {
        const int ChecksumBytes = 4, Largest = 1 << 24;

        sealed class Tensor
        {
            public string Dtype = "";
            public long[] Shape = new long[0], Offsets = new long[0];
        }

        readonly byte[] bytes;
        readonly Dictionary<string, string> metadata = new Dictionary<string, string>();
        readonly Dictionary<string, Tensor> tensors = new Dictionary<string, Tensor>();
        string header = "";
        int place;
        int dataBegin;

        public Reader(byte[] bytes)
        {
            this.bytes = bytes ?? new byte[0];
        }

        public Weights Read(string game, string stateLayout)
        {
            ReadHeader();
            var weights = new Weights { Info = ReadInfo() };
            PolicyInfo info = weights.Info;
            if (game != null && game != info.Game)
                throw new PolicyException("the policy file is of another game: got '" + info.Game + "', expected '" + game +
                                          "'.");
            if (stateLayout != null && stateLayout != info.StateLayout)
                throw new PolicyException("the policy file is of another state layout: got '" + info.StateLayout +
                                          "', expected '" + stateLayout +
                                          "'. Export a policy that was trained on this layout.");
            int S = info.StateSize, H = info.HiddenDim, W = info.ActionHiddenDim;
            weights.State1 = Matrix("state1.weight", H, S);
            weights.State1Bias = Plain("state1.bias", H);
            weights.State2 = Matrix("state2.weight", H, H);
            weights.State2Bias = Plain("state2.bias", H);
            weights.StateToPair = Matrix("state_to_pair.weight", H, H);
            weights.StateToPairBias = Plain("state_to_pair.bias", H);
            if (info.NumActions > 0)
            {
                weights.Action1 = Plain("action_table", info.NumActions, W);
            }
            else
            {
                weights.Action1 = Matrix("action1.weight", W, 64);
                weights.Action1Bias = Plain("action1.bias", W);
            }
            weights.ActionToPair = Matrix("action_to_pair.weight", H, W);
            weights.Pair = Plain("pair.weight", H);
            return weights;
        }

        static PolicyException Damaged(string why)
        {
            return new PolicyException("the policy file is damaged" + why);
        }

        void ReadHeader()
        {
            if (bytes.Length < 8 + 2 + ChecksumBytes)
                throw new PolicyException("the policy file is too short: " +
                                          bytes.Length.ToString(CultureInfo.InvariantCulture) + " bytes. Copy it again.");
            int sum = bytes.Length - ChecksumBytes;
            uint stored = (uint)(bytes[sum] | bytes[sum + 1] << 8 | bytes[sum + 2] << 16) | (uint)bytes[sum + 3] << 24;
            if (Crc32(bytes, sum) != stored)
                throw Damaged(", or no weights file of movelist: its checksum differs. Copy it again.");
            ulong length = 0;
            for (int i = 7; i >= 0; --i) length = (length << 8) | bytes[i];
            if (length > (ulong)(bytes.Length - 8)) throw Damaged(": its header is longer than the file.");
            dataBegin = 8 + (int)length;
            header = Encoding.UTF8.GetString(bytes, 8, (int)length);
            if (!ReadEntries() || !AtEnd()) throw Damaged(": its header cannot be read.");
            long end = 0;
            foreach (Tensor tensor in tensors.Values)
                if (tensor.Offsets.Length == 2) end = Math.Max(end, tensor.Offsets[1]);
            if (end != bytes.Length - dataBegin) throw Damaged(": its tensors do not fill it.");
        }

        static uint Crc32(byte[] bytes, int size)
        {
            var table = new uint[256];
            for (uint n = 0; n < 256; ++n)
            {
                uint value = n;
                for (int bit = 0; bit < 8; ++bit) value = (value & 1u) != 0u ? 0xEDB88320u ^ (value >> 1) : value >> 1;
                table[n] = value;
            }
            uint crc = 0xFFFFFFFFu;
            for (int i = 0; i < size; ++i) crc = table[(crc ^ bytes[i]) & 0xFFu] ^ (crc >> 8);
            return crc ^ 0xFFFFFFFFu;
        }

        string Field(string key)
        {
            string value;
            return metadata.TryGetValue(key, out value) ? value : "";
        }

        long Number(string key, long largest)
        {
            long value;
            if (!long.TryParse(Field(key), NumberStyles.None, CultureInfo.InvariantCulture, out value) || value > largest)
                throw new PolicyException("the policy file has no proper " + key + ".");
            return value;
        }

        PolicyInfo ReadInfo()
        {
            if (Field("format") != "movelist-weights/1")
                throw new PolicyException("this is no weights file of movelist: format '" + Field("format") +
                                          "', expected 'movelist-weights/1'. Export with --profile weights.");
            var info = new PolicyInfo
            {
                Game = Field("game"),
                StateLayout = Field("state_layout"),
                ActionEncoder = Field("action_encoder"),
                Movelist = Field("movelist"),
                SettingsHash = Field("settings_hash"),
                PolicyVersion = Number("policy_version", long.MaxValue),
                StateSize = (int)Number("state_size", Largest),
                HiddenDim = (int)Number("hidden_dim", Largest),
                ActionHiddenDim = (int)Number("action_hidden_dim", Largest),
                NumActions = (int)Number("num_actions", Largest),
            };
            bool bits = info.ActionEncoder == "bits" && info.NumActions == 0;
            bool table = info.ActionEncoder == "table" && info.NumActions > 0;
            if ((!bits && !table) || info.StateSize == 0 || info.HiddenDim == 0 || info.ActionHiddenDim == 0)
                throw new PolicyException("the policy file has no proper sizes for action_encoder '" + info.ActionEncoder +
                                          "'.");
            return info;
        }

        float[] Plain(string name, params int[] shape)
        {
            Tensor tensor;
            if (!tensors.TryGetValue(name, out tensor)) throw new PolicyException("the policy file lacks " + name + ".");
            long count = 1;
            bool good = tensor.Dtype == "F32" && tensor.Shape.Length == shape.Length && tensor.Offsets.Length == 2;
            for (int i = 0; i < shape.Length; ++i)
            {
                good = good && tensor.Shape[i] == shape[i];
                count *= shape[i];
            }
            long size = bytes.Length - dataBegin;
            if (!good || tensor.Offsets[0] > tensor.Offsets[1] || tensor.Offsets[1] > size ||
                tensor.Offsets[1] - tensor.Offsets[0] != 4 * count)
                throw new PolicyException("the policy file has a wrong size for " + name + ".");
            var values = new float[count];
            Buffer.BlockCopy(bytes, dataBegin + (int)tensor.Offsets[0], values, 0, 4 * (int)count);
            foreach (float value in values)
                if (float.IsNaN(value) || float.IsInfinity(value))
                    throw new PolicyException("the policy file holds NaN or infinity in " + name + ".");
            return values;
        }

        // [rows, columns] in the file, transposed here.
        float[] Matrix(string name, int rows, int columns)
        {
            float[] straight = Plain(name, rows, columns);
            var turned = new float[straight.Length];
            for (int r = 0; r < rows; ++r)
                for (int c = 0; c < columns; ++c) turned[c * rows + r] = straight[r * columns + c];
            return turned;
        }

        // The header: {"__metadata__": {text: text}, name: {"dtype": text, "shape": [..], "data_offsets": [..]}}.
        bool ReadEntries()
        {
            if (!Take('{')) return false;
            if (Take('}')) return true;
            do
            {
                string name;
                if (!String(out name) || !Take(':')) return false;
                if (name == "__metadata__" ? !ReadMetadata() : !ReadTensor(name)) return false;
            }
            while (Take(','));
            return Take('}');
        }

        bool ReadMetadata()
        {
            if (!Take('{')) return false;
            if (Take('}')) return true;
            do
            {
                string key, value;
                if (!String(out key) || !Take(':') || !String(out value)) return false;
                metadata[key] = value;
            }
            while (Take(','));
            return Take('}');
        }

        bool ReadTensor(string name)
        {
            var tensor = new Tensor();
            if (!Take('{')) return false;
            do
            {
                string key;
                if (!String(out key) || !Take(':')) return false;
                bool good = key == "dtype" ? String(out tensor.Dtype)
                    : key == "shape" ? Numbers(out tensor.Shape)
                    : key == "data_offsets" && Numbers(out tensor.Offsets);
                if (!good) return false;
            }
            while (Take(','));
            tensors[name] = tensor;
            return Take('}');
        }

        bool AtEnd()
        {
            SkipSpace();
            return place == header.Length;
        }

        void SkipSpace()
        {
            while (place < header.Length && " \t\r\n".IndexOf(header[place]) >= 0) ++place;
        }

        bool Take(char wanted)
        {
            SkipSpace();
            if (place >= header.Length || header[place] != wanted) return false;
            ++place;
            return true;
        }

        bool Numbers(out long[] values)
        {
            var found = new List<long>();
            values = new long[0];
            if (!Take('[')) return false;
            if (Take(']')) return true;
            do
            {
                SkipSpace();
                int begin = place;
                while (place < header.Length && header[place] >= '0' && header[place] <= '9') ++place;
                long value;
                if (found.Count == 8 || !long.TryParse(header.Substring(begin, place - begin), NumberStyles.None,
                                                       CultureInfo.InvariantCulture, out value)) return false;
                found.Add(value);
            }
            while (Take(','));
            values = found.ToArray();
            return Take(']');
        }

        bool String(out string value)
        {
            var text = new StringBuilder();
            value = "";
            if (!Take('"')) return false;
            while (place < header.Length)
            {
                char letter = header[place++];
                if (letter == '"')
                {
                    value = text.ToString();
                    return true;
                }
                if (letter == '\\')
                {
                    if (place >= header.Length || !Escape(out letter)) return false;
                }
                text.Append(letter);
            }
            return false;
        }

        bool Escape(out char letter)
        {
            letter = header[place++];
            if (letter == 'u')
            {
                ushort code;
                if (place + 4 > header.Length || !ushort.TryParse(header.Substring(place, 4), NumberStyles.AllowHexSpecifier,
                                                                  CultureInfo.InvariantCulture, out code)) return false;
                place += 4;
                letter = (char)code;
                return true;
            }
            int known = "\"\\/bfnrt".IndexOf(letter);
            if (known < 0) return false;
            letter = "\"\\/\b\f\n\r\t"[known];
            return true;
        }
    }
}
